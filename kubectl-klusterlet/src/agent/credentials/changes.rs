//! Notices what others change: the request on the hub, the bootstrap kubeconfig, the Secret.

use std::time::Duration;

use shared::error::Cause;

use super::{
    super::{Context, state::set},
    LONGEST_SLEEP,
};
use crate::{
    connection::HubAccess,
    csr::{RequestState, request_state},
    files::FileMark,
    follow::{Change, follow},
    hub::Hub,
    hub_kubeconfig::files_of,
};

/// Resolves when the request is not as it was seen any more, or cannot be watched.
pub(super) async fn decided(context: &Context, access: &HubAccess, name: &str, seen: &RequestState) {
    let hub = Hub::new(access, &context.options.cluster_name);
    let fields = format!("metadata.name={name}");
    let requests = hub.requests();
    let changed = tokio::sync::Notify::new();
    let mut found = false;
    let watch = follow(
        &access.cluster,
        &requests,
        "the certificate request on the hub",
        Some(&fields),
        |change| match change {
            Change::Begin => found = false,
            Change::Set(request) => {
                found = true;
                if request_state(&request) != *seen {
                    changed.notify_one();
                }
            }
            Change::Gone(_) => changed.notify_one(),
            Change::Complete if !found => changed.notify_one(),
            Change::Complete => {}
        },
    );
    tokio::select! {
        // The next look tells the trouble, and waits after it.
        _ = watch => tokio::time::sleep(Duration::from_secs(1)).await,
        () = changed.notified() => {}
        () = tokio::time::sleep(LONGEST_SLEEP) => {}
    }
}

/// Tells when the bootstrap kubeconfig, or a file that it names, changes.
pub async fn watch_bootstrap_file(context: &Context) {
    let path = context.bootstrap_file();
    let look = |files: &[std::path::PathBuf]| files.iter().map(|file| FileMark::of(file)).collect::<Vec<_>>();
    let mut files = files_of(&path);
    let mut marks = look(&files);
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if look(&files) != marks {
            files = files_of(&path);
            marks = look(&files);
            context
                .log
                .info("the bootstrap kubeconfig changed", &[("file", &path.display())]);
            // What was refused before may be right for another hub.
            set(&context.state.rejected, None);
            context.state.bootstrap.send_if_modified(|old| old.take().is_some());
            context.state.look_again.notify_one();
        }
    }
}

/// Tells when somebody else changes or removes the Secret with the credentials.
pub async fn watch_secret(context: &Context) {
    let name = &context.options.hub_kubeconfig_secret;
    let fields = format!("metadata.name={name}");
    loop {
        let mut listed = false;
        let error = follow(
            &context.spoke.cluster,
            &context.spoke.secrets(),
            "the hub's Secret on the spoke",
            Some(&fields),
            |change| match change {
                Change::Complete => listed = true,
                Change::Set(_) | Change::Gone(_) if listed => context.state.look_again.notify_one(),
                _ => {}
            },
        )
        .await;
        if error.cause() == Cause::Forbidden {
            context.log.error("changes of the Secret are not noticed", &error);
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        context.state.look_again.notify_one();
    }
}
