//! `validate`: options, files, both APIs and permissions, one line a check, and nothing is written.

use shared::{Error, Printer, Result, kube_client::KubeFlags};

use crate::{
    agent::{complete, trouble_of},
    connection::{HubAccess, SpokeConnection, connect_spoke},
    hub::Hub,
    hub_kubeconfig::{Problem, assess},
    names::pending_secret,
    options::{FailoverAgentOptions, not_the_hub},
    outcome::{Failure, code_of},
    preflight,
    run::{ca_bundle, pod_namespace},
    spoke::Spoke,
    timing::skew_warning,
};

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Good,
    Warning,
    Bad,
}

/// Collects the lines.
struct Checks<'a> {
    printer: &'a Printer,
    bad: usize,
    code: Option<u8>,
}

impl Checks<'_> {
    fn add(&mut self, mark: Mark, what: &str, text: &str) -> Result<()> {
        let sign = match mark {
            Mark::Good => "ok     ",
            Mark::Warning => "warning",
            Mark::Bad => "FAILED ",
        };
        self.bad += usize::from(mark == Mark::Bad);
        self.printer
            .data(&format!("{sign} {what}: {}", shared::printer::printable(text)))
    }

    fn failed(&mut self, what: &str, error: &Error) -> Result<()> {
        if self.code.is_none() {
            self.code = Some(code_of(trouble_of(error).kind)).filter(|code| *code > 2);
        }
        let hints: String = error.hints().iter().map(|hint| format!(" (hint: {hint})")).collect();
        self.add(Mark::Bad, what, &format!("{error}{hints}"))
    }
}

/// Checks everything.
///
/// # Errors
/// A check failed; with the exit code of the first that has one of its own.
pub async fn validate(mut options: FailoverAgentOptions, kube: &KubeFlags, printer: &Printer) -> Result<(), Failure> {
    let mut checks = Checks {
        printer,
        bad: 0,
        code: None,
    };
    match connect_spoke(kube) {
        Err(error) => checks.failed("spoke", &error)?,
        Ok(connection) => {
            let spoke = Spoke {
                namespace: options.namespace(pod_namespace().as_deref()),
                cluster: connection.cluster.clone(),
            };
            of_spoke(&mut options, &spoke, &connection, &mut checks).await?;
        }
    }
    match options.validate() {
        Ok(()) => checks.add(
            Mark::Good,
            "options",
            &format!("cluster {}, agent {}", options.cluster_name, options.agent_name),
        )?,
        Err(error) => checks.failed("options", &error)?,
    }
    if let Some(path) = options.bootstrap_kubeconfig.first() {
        match HubAccess::bootstrap(path) {
            Err(error) => checks.failed("bootstrap kubeconfig", &error)?,
            Ok(access) => {
                checks.add(
                    Mark::Good,
                    "bootstrap kubeconfig",
                    &format!("{} leads to {}", path.display(), access.endpoint.server),
                )?;
                of_hub(&options, &access, &mut checks).await?;
            }
        }
    }
    if checks.bad == 0 {
        return Ok(());
    }
    let error = Error::new(format!("{} checks failed", checks.bad));
    Err(Failure {
        error,
        code: checks.code,
    })
}

async fn of_spoke(
    options: &mut FailoverAgentOptions,
    spoke: &Spoke,
    connection: &SpokeConnection,
    checks: &mut Checks<'_>,
) -> Result<()> {
    match spoke.uid().await {
        Ok(_) => checks.add(Mark::Good, "spoke", &format!("{} answers", spoke.cluster.server))?,
        Err(error) => return checks.failed("spoke", &error),
    }
    let secrets = [
        options.hub_kubeconfig_secret.clone(),
        pending_secret(&options.hub_kubeconfig_secret),
    ];
    match preflight::missing(&spoke.cluster, &preflight::of_spoke(&spoke.namespace, &secrets)).await {
        Err(error) => checks.failed("permissions on the spoke", &error)?,
        Ok(lacks) if lacks.is_empty() => checks.add(Mark::Good, "permissions on the spoke", "all are there")?,
        Ok(lacks) => {
            for permission in lacks {
                let mark = if permission.is_optional {
                    Mark::Warning
                } else {
                    Mark::Bad
                };
                checks.add(
                    mark,
                    "permissions on the spoke",
                    &format!("may not {}", permission.describe()),
                )?;
            }
        }
    }
    if let Err(error) = ca_bundle(&options.spoke_external_server_urls, connection.authorities.as_deref()) {
        checks.failed("external addresses", &error)?;
    }
    match complete(options, spoke, pod_namespace(), false).await {
        Err(error) => return checks.failed("stored credentials", &error),
        Ok((warnings, _)) => {
            for warning in warnings {
                checks.add(Mark::Warning, "stored credentials", &warning)?;
            }
        }
    }
    let Some(stored) = spoke.secret(&options.hub_kubeconfig_secret).await? else {
        return checks.add(
            Mark::Good,
            "stored credentials",
            "there are none yet: join asks for them",
        );
    };
    let endpoint = options
        .bootstrap_kubeconfig
        .first()
        .and_then(|path| crate::hub_kubeconfig::HubEndpoint::read(path).ok());
    let verdict = assess(
        &stored.data,
        endpoint.as_ref(),
        &options.cluster_name,
        &options.agent_name,
        jiff::Timestamp::now(),
    );
    match verdict {
        Ok(chain) => checks.add(
            Mark::Good,
            "stored credentials",
            &format!("valid until {}", chain.validity().not_after),
        ),
        Err(problem @ Problem::Missing(_)) => checks.add(Mark::Warning, "stored credentials", &problem.to_string()),
        Err(problem) => checks.add(
            Mark::Warning,
            "stored credentials",
            &format!("{problem}: a new certificate will be asked for"),
        ),
    }
}

async fn of_hub(options: &FailoverAgentOptions, access: &HubAccess, checks: &mut Checks<'_>) -> Result<()> {
    match preflight::missing(&access.cluster, &preflight::of_bootstrap()).await {
        Err(error) => return checks.failed("permissions on the hub", &error),
        Ok(lacks) if lacks.is_empty() => checks.add(Mark::Good, "permissions on the hub", "all are there")?,
        Ok(lacks) => {
            let list: Vec<_> = lacks.iter().map(preflight::Permission::describe).collect();
            checks.code = checks.code.or(Some(crate::outcome::UNAUTHORIZED));
            checks.add(
                Mark::Bad,
                "permissions on the hub",
                &format!("may not {}", list.join("; ")),
            )?;
        }
    }
    if let Some(skew) = access.skew().await {
        match skew_warning(Some(skew)) {
            Some(text) => checks.add(Mark::Warning, "clocks", &text)?,
            None => checks.add(Mark::Good, "clocks", "this machine's and the hub's agree")?,
        }
    }
    if let Err(error) = not_the_hub(&options.spoke_external_server_urls, &access.endpoint.server) {
        checks.failed("external addresses", &error)?;
    }
    match Hub::new(access, &options.cluster_name).cluster().await {
        Err(error) => checks.failed("hub", &error),
        Ok(Some(_)) => checks.add(
            Mark::Good,
            "hub",
            &format!("knows ManagedCluster {}", options.cluster_name),
        ),
        Ok(None) => checks.add(
            Mark::Good,
            "hub",
            &format!("has no ManagedCluster {} yet", options.cluster_name),
        ),
    }
}
