//! Helper Pods, and commands that run in them.

use super::{ControlPlane, absent, object};
use crate::helper_pod;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, DeleteParams, ListParams, PostParams};
use serde_json::Value;
use shared::{Context, Error, Result};
use std::sync::PoisonError;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// What may pass at once through the pipes of a command: our executable goes in, a node's manifests come out.
const PIPE: usize = 256 * 1024;
/// Longest output of a command: a node's manifests and files are far below it, and a node may be in bad hands.
const LONGEST: u64 = 16 * 1024 * 1024;
/// No command takes longer.
const DEADLINE: Duration = Duration::from_secs(120);

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it ended with exit code 0.
    pub success: bool,
    /// How it ended, in words.
    pub reason: String,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

impl ControlPlane {
    /// Makes a helper Pod, and gives its name.
    ///
    /// # Errors
    /// As the API says.
    pub async fn create_helper(&self, pod: &Value) -> Result<String> {
        let pods = self.dynamic("v1", "Pod", "pods");
        let object = object(pod)?;
        let made = self
            .cluster
            .call(
                "create the helper Pod in kube-system",
                pods.create(&PostParams::default(), &object),
            )
            .await?;
        let name = made.metadata.name.unwrap_or_default();
        self.helpers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.clone());
        Ok(name)
    }

    /// Removes a helper Pod.
    ///
    /// # Errors
    /// As the API says; that it is not there is fine.
    pub async fn delete_helper(&self, name: &str) -> Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        let pods = self.namespaced::<Pod>();
        absent(
            self.cluster
                .call(&format!("delete Pod {name}"), pods.delete(name, &at_once))
                .await,
        )?;
        self.helpers.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        Ok(())
    }

    /// Removes the helpers that this process made and has not removed: after an interruption.
    pub async fn delete_own_helpers(&self) {
        let names = self.helpers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for name in names {
            // one that cannot be removed ends by itself
            let _ = self.delete_helper(&name).await;
        }
    }

    /// Removes helpers that have ended and were left by somebody who was killed.
    ///
    /// # Errors
    /// As the API says.
    pub async fn delete_ended_helpers(&self) -> Result<()> {
        let left = ListParams::default().labels(&format!("component={}", helper_pod::COMPONENT));
        let pods = self.namespaced::<Pod>();
        for pod in self.cluster.call("list helper Pods", pods.list(&left)).await? {
            let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
            if let Some(name) = pod.metadata.name.filter(|_| phase == "Failed" || phase == "Succeeded") {
                self.delete_helper(&name).await?;
            }
        }
        Ok(())
    }

    /// Runs a command in a Pod to its end.
    ///
    /// # Errors
    /// The Pod cannot be reached. A command that fails is no error.
    pub async fn execute(&self, pod: &str, container: &str, command: &[&str], input: Option<&[u8]>) -> Result<Outcome> {
        let what = format!("run a command in Pod {pod}");
        let parameters = AttachParams::default()
            .container(container)
            .stdin(input.is_some())
            .stdout(true)
            .stderr(true)
            .max_stdin_buf_size(PIPE)
            .max_stdout_buf_size(PIPE)
            .max_stderr_buf_size(PIPE);
        let pods = self.namespaced::<Pod>();
        let mut attached = self
            .cluster
            .call(&what, pods.exec(pod, command.to_vec(), &parameters))
            .await?;
        let status = attached.take_status();
        let (stdin, stdout, stderr) = (attached.stdin(), attached.stdout(), attached.stderr());
        let write = async {
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                stdin.write_all(input).await?;
                stdin.flush().await?;
                stdin.shutdown().await?;
            }
            Ok::<_, std::io::Error>(())
        };
        let work = async {
            let (written, stdout, stderr) = tokio::join!(write, read_all(stdout), read_all(stderr));
            let status = match status {
                Some(status) => status.await,
                None => None,
            };
            (written, stdout, stderr, status)
        };
        let Ok((written, stdout, stderr, status)) = tokio::time::timeout(DEADLINE, work).await else {
            return Err(Error::new(format!("cannot {what}"))
                .because(format!("it has not ended after {} s", DEADLINE.as_secs()))
                .with_cause(shared::error::Cause::TimedOut));
        };
        let what = || format!("cannot {what}");
        let (stdout, stderr) = (stdout.with_context(what)?, stderr.with_context(what)?);
        let Some(status) = status else {
            return Err(Error::new(what())
                .because("the connection ended before the command did")
                .with_cause(shared::error::Cause::Unreachable));
        };
        let success = status.status.as_deref() == Some("Success");
        if success {
            written.with_context(what)?;
        }
        Ok(Outcome {
            success,
            reason: status.message.unwrap_or_else(|| "it failed".to_owned()),
            stdout,
            stderr,
        })
    }
}

async fn read_all(reader: Option<impl AsyncRead + Unpin>) -> std::io::Result<String> {
    let mut text = Vec::new();
    if let Some(reader) = reader {
        reader.take(LONGEST).read_to_end(&mut text).await?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
