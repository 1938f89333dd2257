//! One node whose files are to be read or changed: this machine, or one that is reached through a helper Pod.

use crate::certs_in_secrets::{NodeFiles, ROUNDS, read_all, read_local, wanted};
use crate::cluster::ControlPlane;
use crate::helper_pod::{Helper, with_helper};
use crate::install::{self, NodeBinary};
use crate::local_node::LocalNode;
use crate::names::Component;
use crate::survey::{self, Installation, Survey};
use serde::de::DeserializeOwned;
use serde_json::Value;
use shared::{Error, Result};
use std::time::Duration;

/// Where a node is.
#[derive(Clone, Debug)]
pub enum Place {
    /// This machine.
    Here(LocalNode),
    /// Somewhere else: a helper Pod of that image goes there.
    Away {
        /// The image.
        image: String,
    },
}

/// One node.
#[derive(Clone, Debug)]
pub struct Target {
    /// The API.
    pub control_plane: ControlPlane,
    /// Name of the Node.
    pub node_name: String,
    /// Where it is.
    pub place: Place,
    /// Our executable for it.
    pub binary: NodeBinary,
}

/// How often something that fails by itself is tried through a new helper.
const ATTEMPTS: u32 = 3;

impl Target {
    /// Whether a helper Pod is needed.
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(self.place, Place::Away { .. })
    }

    /// Looks at the node's files. Nothing is changed.
    ///
    /// # Errors
    /// The node cannot be reached or looked at, or our executable there is of another version.
    pub async fn survey(&self) -> Result<Survey> {
        let survey = match &self.place {
            Place::Here(local) => survey::survey(local),
            Place::Away { .. } => {
                self.through_helper(async |helper| parsed(&helper.run(&["node", "survey"]).await?))
                    .await
            }
        }
        .map_err(|error| error.context(format!("Node {} cannot be looked at", self.node_name)))?;
        if survey.version == env!("CARGO_PKG_VERSION") {
            return Ok(survey);
        }
        Err(Error::refused(format!(
            "the executable for Node {} is of version {}",
            self.node_name, survey.version
        ))
        .because(format!("this program is of version {}", env!("CARGO_PKG_VERSION")))
        .hint("name one of the same version by --node-binary"))
    }

    /// Reads the files that the flags of these Pods' components name, and what these name in turn. Through a helper they travel
    /// within its connection, and are written nowhere.
    ///
    /// # Errors
    /// The node cannot be reached. What cannot be read is in the answer.
    pub async fn files(&self, pods: &[(Component, &Value)]) -> Result<NodeFiles> {
        if !self.is_away() {
            return Ok(read_all(pods, read_local));
        }
        self.through_helper(async |helper| {
            let mut files = NodeFiles::new();
            for _ in 0..ROUNDS {
                let wanted = wanted(pods, &files);
                if wanted.is_empty() {
                    break;
                }
                let arguments: Vec<&str> = ["node", "read-files"]
                    .into_iter()
                    .chain(wanted.iter().map(String::as_str))
                    .collect();
                files.extend(parsed::<NodeFiles>(&helper.run(&arguments).await?)?);
            }
            Ok(files)
        })
        .await
        .map_err(|error| error.context(format!("the certificates of Node {} cannot be read", self.node_name)))
    }

    /// Installs executable, state directory and guard. Returns whether the guard's manifest was changed.
    ///
    /// # Errors
    /// What cannot be written, or why the executable does not run there.
    pub async fn install(&self, image: &str, last_known_good_after: Option<Duration>) -> Result<bool> {
        let installation = Installation {
            node_name: self.node_name.clone(),
            image: image.to_owned(),
            last_known_good_after,
        };
        let after = last_known_good_after.map(|after| format!("{}s", after.as_secs()));
        match &self.place {
            Place::Here(local) => survey::install(local, &self.binary, &installation),
            Place::Away { .. } => {
                self.through_helper(async |helper| {
                    let mut arguments = vec!["node", "install", "--node-name", &self.node_name, "--image", image];
                    arguments.extend(after.iter().flat_map(|after| ["--last-known-good-after", after]));
                    parsed(&helper.run(&arguments).await?)
                })
                .await
            }
        }
        .map_err(|error| error.context(format!("nothing can be installed on Node {}", self.node_name)))
    }

    /// Takes the guard's manifest out.
    ///
    /// # Errors
    /// It cannot be removed.
    pub async fn remove_guard(&self) -> Result<()> {
        match &self.place {
            Place::Here(local) => install::remove_guard(local),
            Place::Away { .. } => {
                self.through_helper(async |helper| helper.run(&["node", "remove-guard"]).await.map(drop))
                    .await
            }
        }
    }

    /// Removes everything that we installed, once the guard's process is gone. Returns whether it was.
    ///
    /// # Errors
    /// What cannot be removed.
    pub async fn remove_files(&self) -> Result<bool> {
        match &self.place {
            Place::Here(_) if survey::guard_runs() => Ok(false),
            Place::Here(_) => install::remove_files().map(|()| true),
            Place::Away { .. } => {
                self.through_helper(async |helper| parsed(&helper.run(&["node", "remove-files"]).await?))
                    .await
            }
        }
    }

    async fn through_helper<T>(&self, work: impl AsyncFn(&Helper<'_>) -> Result<T>) -> Result<T> {
        let image = match &self.place {
            Place::Away { image } => image.as_str(),
            Place::Here(_) => crate::helper_pod::DEFAULT_IMAGE,
        };
        let mut attempt = 1;
        loop {
            // all that is done through it may be done twice
            match with_helper(&self.control_plane, &self.node_name, image, &self.binary, &work).await {
                Err(error)
                    if error.is_retryable()
                        && error.cause() != shared::error::Cause::TimedOut
                        && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
                other => return other,
            }
        }
    }
}

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::new("the node's answer cannot be read").because(error))
}
