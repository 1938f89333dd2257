//! The flags that kubectl gives to all its commands (package `k8s.io/cli-runtime/pkg/genericclioptions`). kubectl takes
//! no flag in front of a plugin's name, so each plugin has to know them.

use std::{path::PathBuf, time::Duration};

use clap_complete::engine::ArgValueCandidates;

use super::{Cluster, Defaults, Environment, complete, resolve};
use crate::{Error, Result};

/// kubectl's connection flags, with its names and meanings. A flag beats the context, which beats the default.
///
/// `-h` shows those that are typed daily, `--help` shows all.
#[derive(Clone, Default, clap::Args)]
#[command(next_help_heading = "Connection options, as with kubectl")]
pub struct KubeFlags {
    /// Path to the kubeconfig file; beats $KUBECONFIG
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Name of the kubeconfig context to use
    #[arg(long, value_name = "NAME", global = true, add = ArgValueCandidates::new(complete::contexts))]
    pub context: Option<String>,
    /// Name of the kubeconfig cluster to use
    #[arg(long, value_name = "NAME", global = true, hide_short_help = true, add = ArgValueCandidates::new(complete::clusters))]
    pub cluster: Option<String>,
    /// Name of the kubeconfig user to use
    #[arg(long, value_name = "NAME", global = true, hide_short_help = true, add = ArgValueCandidates::new(complete::users))]
    pub user: Option<String>,
    /// Namespace of this request
    #[arg(short = 'n', long, value_name = "NAME", global = true)]
    pub namespace: Option<String>,
    /// Address and port of the API server
    #[arg(short = 's', long, value_name = "URL", global = true, hide_short_help = true)]
    pub server: Option<String>,
    /// Bearer token to authenticate to the API server with
    #[arg(long, global = true, hide_short_help = true)]
    pub token: Option<String>,
    /// Path to the certificate of the certificate authority
    #[arg(long, value_name = "FILE", global = true, hide_short_help = true)]
    pub certificate_authority: Option<PathBuf>,
    /// Path to a client certificate for TLS
    #[arg(long, value_name = "FILE", global = true, hide_short_help = true)]
    pub client_certificate: Option<PathBuf>,
    /// Path to a client key for TLS
    #[arg(long, value_name = "FILE", global = true, hide_short_help = true)]
    pub client_key: Option<PathBuf>,
    /// Name that the certificate of the server has to carry, where it is not the server's host name
    #[arg(long, value_name = "NAME", global = true, hide_short_help = true)]
    pub tls_server_name: Option<String>,
    /// Accept any certificate of the server; the connection is then insecure
    #[arg(
        long,
        global = true, hide_short_help = true,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true",
        hide_default_value = true,
        hide_possible_values = true,
        action = clap::ArgAction::Set
    )]
    pub insecure_skip_tls_verify: bool,
    /// User to impersonate
    #[arg(long = "as", value_name = "USER", global = true, hide_short_help = true)]
    pub impersonate: Option<String>,
    /// UID to impersonate
    #[arg(long = "as-uid", value_name = "UID", global = true, hide_short_help = true)]
    pub impersonate_uid: Option<String>,
    /// Group to impersonate (can be repeated)
    #[arg(long = "as-group", value_name = "GROUP", global = true, hide_short_help = true)]
    pub impersonate_groups: Vec<String>,
    /// What a single request to the API server may take, such as 10, 10s or 2m; 0 means no limit
    #[arg(long, value_name = "DURATION", global = true, hide_short_help = true, default_value = "30s", value_parser = parse_timeout)]
    pub request_timeout: Option<Duration>,
    /// Do not compress answers (nothing is compressed at present)
    #[arg(
        long,
        global = true, hide_short_help = true,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true",
        hide_default_value = true,
        hide_possible_values = true,
        action = clap::ArgAction::Set
    )]
    pub disable_compression: bool,
    /// Directory of kubectl's cache (accepted and not used: nothing is cached)
    #[arg(long, value_name = "DIRECTORY", global = true, hide_short_help = true)]
    pub cache_dir: Option<PathBuf>,
}

/// Shows everything but the token.
impl std::fmt::Debug for KubeFlags {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("KubeFlags")
            .field("kubeconfig", &self.kubeconfig)
            .field("context", &self.context)
            .field("server", &self.server)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl KubeFlags {
    /// Reads the kubeconfig and prepares a client; sends nothing yet.
    ///
    /// # Errors
    /// When there is no usable configuration; the error names file, field and remedy.
    #[allow(
        clippy::unused_async,
        reason = "reading credentials may become asynchronous; callers need not change then"
    )]
    pub async fn connect(&self, defaults: &Defaults) -> Result<Cluster> {
        Cluster::new(resolve(self, defaults, &Environment::of_process())?)
    }
}

/// Reads a duration as kubectl does: a bare number counts seconds, else Go's notation (`1m30s`, `500ms`). 0 is no limit.
///
/// # Errors
/// When it is neither.
pub fn parse_timeout(text: &str) -> Result<Duration> {
    let duration = match text.parse::<u64>() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => go_duration(text),
    };
    match duration {
        Some(Duration::ZERO) => Ok(Duration::MAX),
        Some(duration) => Ok(duration),
        None => {
            Err(Error::usage(format!("{text:?} is not a duration")).hint("write 10s, 2m or 1m30s; 0 means no limit"))
        }
    }
}

/// Reads a duration in Go's notation (`1m30s`, `500ms`, `0`); 0 is no time at all.
///
/// # Errors
/// When it is none, or negative.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let duration = if text == "0" {
        Some(Duration::ZERO)
    } else {
        go_duration(text)
    };
    duration.ok_or_else(|| Error::usage(format!("{text:?} is not a duration")).hint("write 10s, 2m or 1m30s"))
}

fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail
            .find(|character: char| character.is_ascii_digit() || character == '.')
            .unwrap_or(tail.len());
        let (unit, after) = tail.split_at(unit_end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        total = total.checked_add(part)?;
        rest = after;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        kube: KubeFlags,
    }

    #[test]
    fn durations_are_read_as_kubectl_reads_them() {
        let cases = [
            ("0", Some(Duration::MAX)),
            ("0s", Some(Duration::MAX)),
            ("10", Some(Duration::from_secs(10))),
            ("1m30s", Some(Duration::from_secs(90))),
            ("500ms", Some(Duration::from_millis(500))),
            ("1.5h", Some(Duration::from_secs(5400))),
            ("-1s", None),
            ("", None),
            ("10 s", None),
            ("1d", None),
            ("s", None),
            ("1..2s", None),
            ("99999999999999999999h", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_timeout(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn all_flags_of_kubectl_are_known() {
        let arguments = "c --kubeconfig k --context c --cluster cl --user u -n ns -s https://a --token t \
            --certificate-authority ca --client-certificate cc --client-key ck --tls-server-name sn \
            --insecure-skip-tls-verify --as a --as-uid i --as-group g --as-group h --request-timeout 5s \
            --disable-compression=false --cache-dir d";
        let flags = Command::try_parse_from(arguments.split_whitespace()).unwrap().kube;
        assert_eq!(flags.namespace.as_deref(), Some("ns"));
        assert_eq!(flags.impersonate_groups, ["g", "h"]);
        assert_eq!(flags.request_timeout, Some(Duration::from_secs(5)));
        assert!(flags.insecure_skip_tls_verify && !flags.disable_compression);
        let without = Command::try_parse_from(["c"]).unwrap().kube;
        assert!(!without.insecure_skip_tls_verify);
        assert_eq!(without.request_timeout, Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_token_is_never_shown() {
        let flags = KubeFlags {
            token: Some("secret-token".into()),
            ..Default::default()
        };
        assert!(!format!("{flags:?}").contains("secret-token"));
    }
}
