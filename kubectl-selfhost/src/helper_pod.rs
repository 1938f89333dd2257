//! The short-lived Pod through which a node is reached from elsewhere: it carries our executable there, and runs it with
//! the node's own root directory.

use crate::cluster::ControlPlane;
use crate::install::NodeBinary;
use crate::names::{FIELD_MANAGER, NAMESPACE};
use crate::patience;
use serde_json::{Value, json};
use shared::wait::{self, Poll};
use shared::{Error, Result};
use std::time::Duration;

/// Image of the helper where nothing else is said: it needs `sh`, `head`, `chroot` and `sha256sum`.
pub const DEFAULT_IMAGE: &str = "busybox:1.36";
/// Value of the label `component` of helper Pods.
pub const COMPONENT: &str = "selfhost-helper";
const CONTAINER: &str = "helper";
/// The Pod ends by itself after this, whatever became of the one who made it.
const LIFE: Duration = Duration::from_secs(300);
/// Where the executable lies in the helper.
const EXECUTABLE: &str = "/incoming/kubectl-selfhost";
const START_DEADLINE: Duration = Duration::from_secs(90);

/// The helper for a node, as it is created.
///
/// It is bound to its node by name, without a scheduler; it has no token of a service account, and a deadline.
#[must_use]
pub fn helper_pod(node: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "selfhost-helper-",
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER, "component": COMPONENT},
        },
        "spec": {
            "nodeName": node,
            "hostPID": true,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFE.as_secs(),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "priorityClassName": "system-node-critical",
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": CONTAINER,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", LIFE.as_secs().to_string()],
                "securityContext": {"privileged": true, "runAsUser": 0},
                "volumeMounts": [{"name": "node", "mountPath": "/host"}, {"name": "incoming", "mountPath": "/incoming"}],
            }],
            "volumes": [
                {"name": "node", "hostPath": {"path": "/", "type": "Directory"}},
                {"name": "incoming", "emptyDir": {}},
            ],
        },
    })
}

/// A helper that runs, with our executable in it.
#[derive(Debug)]
pub struct Helper<'a> {
    control_plane: &'a ControlPlane,
    node: &'a str,
    pod: String,
}

/// Starts a helper on a node, does the work with it, and removes it, whatever came of the work.
///
/// # Errors
/// It cannot be started, or the error of the work.
pub async fn with_helper<T>(
    control_plane: &ControlPlane,
    node: &str,
    image: &str,
    binary: &NodeBinary,
    work: impl AsyncFnOnce(&Helper<'_>) -> Result<T>,
) -> Result<T> {
    let name = control_plane.create_helper(&helper_pod(node, image)).await?;
    let helper = Helper {
        control_plane,
        node,
        pod: name,
    };
    let result = async {
        helper.await_running(image).await?;
        helper.upload(binary).await?;
        work(&helper).await
    }
    .await;
    let removed = patience::call(&format!("Pod {} to be deleted", helper.pod), async || {
        control_plane.delete_helper(&helper.pod).await
    })
    .await;
    // the work counts; a helper that could not be removed ends by itself
    result.and_then(|value| removed.map(|()| value))
}

impl Helper<'_> {
    async fn await_running(&self, image: &str) -> Result<()> {
        let what = format!("Pod {NAMESPACE}/{} to run on Node {}", self.pod, self.node);
        wait::until(&what, START_DEADLINE, Duration::from_millis(200), |_| {}, async || {
            let Some(pod) = (match self.control_plane.pod(&self.pod).await {
                Err(error) if patience::may_pass(&error) => return Ok(Poll::Pending(error.to_string())),
                other => other?,
            }) else {
                return Err(Error::new(format!("Pod {NAMESPACE}/{} was deleted by somebody", self.pod)));
            };
            let facts = crate::observe::pod_facts(&pod, CONTAINER);
            if facts.ready {
                return Ok(Poll::Ready(()));
            }
            let trouble = facts.trouble.unwrap_or_else(|| "its container to start".to_owned());
            if ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"]
                .iter()
                .any(|reason| trouble.starts_with(reason))
            {
                return Err(Error::refused(format!("the helper's image {image} cannot be had on Node {}", self.node))
                    .because(trouble)
                    .hint("name an image with sh, head, chroot and sha256sum that this node has, or can pull, by --helper-image"));
            }
            let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
            if phase == "Failed" {
                return Err(Error::refused(format!("the helper cannot run on Node {}", self.node))
                    .because(trouble)
                    .hint("see what refuses it there: `kubectl -n kube-system get events`"));
            }
            Ok(Poll::Pending(trouble))
        })
        .await
        .map_err(|error| {
            if error.cause() == shared::error::Cause::TimedOut {
                error.hint(format!("see whether the kubelet of Node {} works; nothing was changed there", self.node))
            } else {
                error
            }
        })
    }

    /// Carries the executable into the Pod, and proves by its SHA-256 that it arrived whole.
    async fn upload(&self, binary: &NodeBinary) -> Result<()> {
        let script = format!(
            "head -c {} > {EXECUTABLE} && chmod 0755 {EXECUTABLE} && sha256sum {EXECUTABLE}",
            binary.bytes.len()
        );
        let output = self.execute(&["sh", "-c", &script], Some(&binary.bytes)).await?;
        let arrived = output.split_whitespace().next().unwrap_or_default();
        if arrived == binary.sha256() {
            return Ok(());
        }
        Err(
            Error::new(format!("the executable did not arrive whole on Node {}", self.node)).because(format!(
                "its SHA-256 begins with {:.12} there, and with {} here",
                arrived, binary.build
            )),
        )
    }

    /// Runs our executable on the node, as root with the node's root directory and processes, and gives what it printed.
    ///
    /// # Errors
    /// The Pod cannot be reached, or the command failed, with what it said.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        // The shell stays, and with it the way through /proc to the executable in its root directory: with a command behind
        // it, no shell replaces itself by chroot.
        let script = format!("chroot /host /proc/$$/root{EXECUTABLE} \"$@\"; exit $?");
        let command = [&["sh", "-c", script.as_str(), "sh"], arguments].concat();
        self.execute(&command, None).await
    }

    async fn execute(&self, command: &[&str], input: Option<&[u8]>) -> Result<String> {
        let outcome = self.control_plane.execute(&self.pod, CONTAINER, command, input).await?;
        if outcome.success {
            return Ok(outcome.stdout);
        }
        let mut error = Error::new(format!("a command failed on Node {}", self.node));
        let mut lines = outcome
            .stderr
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .peekable();
        if lines.peek().is_none() {
            error = error.because(outcome.reason);
        }
        for line in lines.take(6) {
            error = match line.strip_prefix("hint: ") {
                Some(hint) => error.hint(hint),
                None => error.because(shared::printer::printable(line.strip_prefix("error: ").unwrap_or(line))),
            };
        }
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_has_no_token_a_deadline_and_its_node() {
        let pod = helper_pod("cp-1", "busybox@sha256:0");
        let spec = &pod["spec"];
        assert_eq!(spec["nodeName"], "cp-1");
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["restartPolicy"], "Never");
        assert_eq!(spec["activeDeadlineSeconds"], 300);
        assert_eq!(spec["containers"][0]["image"], "busybox@sha256:0");
        assert!(spec.get("serviceAccountName").is_none());
    }
}
