//! The pair that is kept in the Secret: what the hub says to it, and where its kubeconfig leads.

use std::collections::BTreeMap;

use shared::error::Cause;

use super::{
    super::{
        Context,
        state::{Trouble, TroubleKind, set},
        trouble_at, trouble_of,
    },
    of_spoke,
};
use crate::{
    certificate::Chain,
    connection::{HubAccess, is_unauthorized},
    csr::fingerprint,
    hub::Hub,
    hub_kubeconfig::{HubEndpoint, Problem, endpoint_of_text},
    names::key,
    spoke::StoredSecret,
};

/// On the hub Secret while its certificate replaces one that the hub had said 401 to, and the hub has not known it yet: if
/// it is refused, too, a third would be no better.
pub(super) const REPLACES_REJECTED: &str = "kubectl-klusterlet/replaces-rejected-certificate";

/// Whether the hub said 401 to the stored certificate.
pub(super) fn is_rejected(context: &Context, stored: &StoredSecret) -> bool {
    let certificate = stored.data.get(key::CERTIFICATE).map(|pem| fingerprint(pem));
    certificate.is_some() && *context.state.rejected.borrow() == certificate
}

/// Asks the hub once more about a pair that it said 401 to. A second 401 leads to one new request, and not to a loop.
pub(super) async fn refused_again(context: &Context, stored: &StoredSecret) -> Result<Result<Chain, Problem>, Trouble> {
    let access = stored_access(stored)?;
    let answer = Hub::new(&access, &context.options.cluster_name).cluster().await;
    match answer {
        Err(error) if is_unauthorized(&error) => {
            if stored.annotations.contains_key(REPLACES_REJECTED) {
                return Err(Trouble {
                    kind: TroubleKind::Unauthorized,
                    text: format!(
                        "the hub at {} signed a new certificate and does not accept it either (401): its signer and its --client-ca-file do not \
                         belong together; no further certificate is asked for until the bootstrap kubeconfig or the Secret changes",
                        access.endpoint.server
                    ),
                });
            }
            Ok(Err(Problem::Rejected))
        }
        Err(error) if error.cause() != Cause::Forbidden => Err(trouble_at(&error, &access.endpoint)),
        _ => {
            set(&context.state.rejected, None);
            let pem = stored.data.get(key::CERTIFICATE).map(Vec::as_slice).unwrap_or_default();
            Ok(Chain::parse(pem).map_err(|error| Problem::Unreadable(error.to_string())))
        }
    }
}

/// The hub with the stored pair.
pub(super) fn stored_access(stored: &StoredSecret) -> Result<HubAccess, Trouble> {
    let get = |name: &str| stored.data.get(name).map(Vec::as_slice).unwrap_or_default();
    endpoint_of_text(get(key::KUBECONFIG))
        .and_then(|endpoint| HubAccess::certificate(&endpoint, get(key::CERTIFICATE), get(key::KEY)))
        .map_err(|error| trouble_of(&error))
}

/// The pair is good, and the bootstrap kubeconfig leads elsewhere: is it the same hub, behind another address, proxy or
/// certificate authority? Then only the kubeconfig changes, and nobody has to approve anything. Whether it is.
pub(super) async fn moved(
    context: &Context,
    stored: &StoredSecret,
    endpoint: &HubEndpoint,
    text: &str,
) -> Result<bool, Trouble> {
    let get = |name: &str| stored.data.get(name).map(Vec::as_slice).unwrap_or_default();
    let access =
        HubAccess::certificate(endpoint, get(key::CERTIFICATE), get(key::KEY)).map_err(|error| trouble_of(&error))?;
    match Hub::new(&access, &context.options.cluster_name).cluster().await {
        Err(error) if is_unauthorized(&error) => {
            context.log.info(
                "the hub there does not know the stored certificate: it is another hub",
                &[("because", &text)],
            );
            Ok(false)
        }
        Err(error) if error.cause() != Cause::Forbidden => Err(trouble_at(&error, endpoint)),
        _ => {
            write_kubeconfig(context, endpoint).await?;
            context.log.info(
                "the hub is the same behind what changed: the stored kubeconfig follows",
                &[("because", &text)],
            );
            Ok(true)
        }
    }
}

/// Makes the stored kubeconfig lead to `endpoint`; the pair stays.
pub(super) async fn write_kubeconfig(context: &Context, endpoint: &HubEndpoint) -> Result<(), Trouble> {
    let text = endpoint.hub_kubeconfig().map_err(|error| trouble_of(&error))?;
    let data = BTreeMap::from([(key::KUBECONFIG.to_owned(), text.into_bytes())]);
    context
        .spoke
        .write_secret(&context.options.hub_kubeconfig_secret, &data, &[])
        .await
        .map_err(of_spoke)
}
