//! From flags, environment and kubeconfig files to the settings of a client, by kubectl's rules (client-go's packages
//! `tools/clientcmd` and `rest`).

use std::{
    env,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use http::{HeaderValue, Uri, header::USER_AGENT};
use kube::config::{AuthInfo, Cluster as ClusterEntry, ExecAuthCluster, Kubeconfig, KubeconfigError};
use rustls::pki_types::{CertificateDer, pem::PemObject};

use super::{Defaults, KubeFlags, ProxyVariables, proxy_for};
use crate::{Context, Error, Result};

/// How long to wait for a TCP connection; the time-out of the request ends it earlier where that is shorter.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What the environment of the process says about connections.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `$KUBECONFIG`.
    pub kubeconfig: Option<OsString>,
    /// The user's home directory.
    pub home: Option<PathBuf>,
    /// The proxy variables.
    pub proxies: ProxyVariables,
}

impl Environment {
    /// The environment of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            kubeconfig: env::var_os("KUBECONFIG"),
            home: env::home_dir(),
            proxies: ProxyVariables::read(|name| env::var(name).ok()),
        }
    }
}

/// All that a client needs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Configuration of the client.
    pub config: kube::Config,
    /// The context that was chosen, `None` where the flags alone say where to connect.
    pub context: Option<String>,
    /// What one call may take.
    pub request_timeout: Duration,
}

/// Where the configuration comes from; for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Flag(PathBuf),
    Variable(Vec<PathBuf>),
    Home(PathBuf),
    Fallback(PathBuf),
    Named(String),
    Nothing,
}

impl Source {
    fn describe(&self) -> String {
        match self {
            Self::Flag(path) | Self::Home(path) | Self::Fallback(path) => path.display().to_string(),
            Self::Variable(paths) => {
                let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
                format!("$KUBECONFIG ({})", paths.join(", "))
            }
            Self::Named(name) => name.clone(),
            Self::Nothing => "the flags (no kubeconfig was found)".to_owned(),
        }
    }
}

/// Reads the files and puts everything together. Touches no network.
///
/// # Errors
/// Usage errors that name file and field: no configuration at all, an unreadable file, an unknown context or cluster, a
/// wrong address, certificate or proxy.
pub fn resolve(flags: &KubeFlags, defaults: &Defaults, environment: &Environment) -> Result<Settings> {
    let (source, kubeconfig) = read(flags, defaults, environment)?;
    let chosen = choose(flags, &source, &kubeconfig)?;
    settings(flags, defaults, environment, &source, chosen)
}

impl Settings {
    /// The settings of a kubeconfig that is no file; `name` is what messages call it.
    ///
    /// # Errors
    /// As [`resolve`].
    pub fn of_kubeconfig(
        name: &str,
        kubeconfig: &Kubeconfig,
        flags: &KubeFlags,
        defaults: &Defaults,
        environment: &Environment,
    ) -> Result<Self> {
        let source = Source::Named(name.to_owned());
        let chosen = choose(flags, &source, kubeconfig)?;
        settings(flags, defaults, environment, &source, chosen)
    }

    /// The cluster that this process is a Pod of, as its ServiceAccount. The token is read again when it is renewed.
    ///
    /// # Errors
    /// It is no Pod, or its files cannot be read.
    pub fn in_cluster(defaults: &Defaults, request_timeout: Duration) -> Result<Self> {
        let mut config = kube::Config::incluster().map_err(|error| {
            Error::from_std(&error)
                .with_kind(crate::error::Kind::Usage)
                .context("the Pod's own cluster cannot be used")
        })?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.default_retry = false;
        user_agent(&mut config, defaults);
        Ok(Self {
            config,
            context: None,
            request_timeout,
        })
    }
}

fn user_agent(config: &mut kube::Config, defaults: &Defaults) {
    if let Ok(value) = HeaderValue::from_str(&defaults.user_agent)
        && !value.is_empty()
    {
        config.headers.push((USER_AGENT, value));
    }
}

/// Which files, in kubectl's order. A file of `$KUBECONFIG` that is not there is skipped, as client-go does.
fn read(flags: &KubeFlags, defaults: &Defaults, environment: &Environment) -> Result<(Source, Kubeconfig)> {
    if let Some(path) = &flags.kubeconfig {
        let config = read_file(path)?.ok_or_else(|| {
            Error::usage(format!("--kubeconfig: {} is not there", path.display()))
                .hint("give the path of a kubeconfig file")
        })?;
        return Ok((Source::Flag(path.clone()), config));
    }
    let listed: Vec<PathBuf> = environment
        .kubeconfig
        .iter()
        .flat_map(|value| env::split_paths(value))
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    if !listed.is_empty() {
        let mut found = None;
        for path in &listed {
            if let Some(next) = read_file(path)? {
                let merged = match found {
                    None => next,
                    Some(merged) => Kubeconfig::merge(merged, next).map_err(|error| {
                        config_error(&error).context(format!("{}: cannot be merged", path.display()))
                    })?,
                };
                found = Some(merged);
            }
        }
        let source = Source::Variable(listed);
        return match found {
            Some(config) => Ok((source, config)),
            None if flags.server.is_some() => Ok((Source::Nothing, Kubeconfig::default())),
            None => Err(Error::usage(format!("no file of {} is there", source.describe()))
                .hint("set KUBECONFIG to a file that exists, unset it, or give --kubeconfig")),
        };
    }
    if let Some(path) = environment.home.as_ref().map(|home| home.join(".kube/config"))
        && let Some(config) = read_file(&path)?
    {
        return Ok((Source::Home(path), config));
    }
    if flags.server.is_some() {
        return Ok((Source::Nothing, Kubeconfig::default()));
    }
    if let Some(path) = &defaults.fallback_kubeconfig
        && let Some(config) = read_file(path)?
    {
        return Ok((Source::Fallback(path.clone()), config));
    }
    let mut error = Error::usage("no kubeconfig was found")
        .because("neither --kubeconfig nor $KUBECONFIG is set, and ~/.kube/config is not there");
    if let Some(path) = &defaults.fallback_kubeconfig {
        error = error.because(format!("{} is not there either", path.display()));
    }
    Err(error.hint("give --kubeconfig FILE, or set KUBECONFIG"))
}

/// The files alone, for completion: `None` where there is none that can be used.
pub(super) fn read_for_completion(kubeconfig: Option<&str>, environment: &Environment) -> Option<Kubeconfig> {
    let flags = KubeFlags {
        kubeconfig: kubeconfig.map(PathBuf::from),
        ..KubeFlags::default()
    };
    read(&flags, &Defaults::default(), environment)
        .ok()
        .map(|(_, config)| config)
}

/// `None` where the file is not there.
fn read_file(path: &Path) -> Result<Option<Kubeconfig>> {
    match Kubeconfig::read_from(path) {
        Ok(config) => Ok(Some(config)),
        Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(KubeconfigError::ReadConfig(error, _)) => {
            let denied = error.kind() == io::ErrorKind::PermissionDenied;
            let result = Error::usage(format!("kubeconfig {} cannot be read", path.display())).because(error);
            Err(if denied {
                result.hint("run it as a user who may read the file, for example with sudo")
            } else {
                result
            })
        }
        Err(error) => Err(config_error(&error).context(format!("kubeconfig {} cannot be used", path.display()))),
    }
}

fn config_error(error: &KubeconfigError) -> Error {
    match error {
        KubeconfigError::Parse(inner) => {
            let inner = inner.without_snippet();
            let place = inner.location().map_or_else(String::new, |at| {
                format!("line {}, column {}: ", at.line(), at.column())
            });
            let text = inner.to_string();
            Error::usage(format!("{place}{}", text.lines().next().unwrap_or_default()))
        }
        other => Error::from_std(other).with_kind(crate::error::Kind::Usage),
    }
}

/// The entries of the kubeconfig with the flags laid over them.
#[derive(Debug)]
struct Chosen {
    context: Option<String>,
    namespace: String,
    cluster: ClusterEntry,
    user: AuthInfo,
}

fn choose(flags: &KubeFlags, source: &Source, kubeconfig: &Kubeconfig) -> Result<Chosen> {
    let nonempty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let context_name = nonempty(&flags.context).or_else(|| nonempty(&kubeconfig.current_context));
    let named = context_name
        .as_ref()
        .map(|name| {
            let found = kubeconfig.contexts.iter().find(|entry| entry.name == *name);
            found.and_then(|entry| entry.context.as_ref()).ok_or_else(|| {
                let known: Vec<&str> = kubeconfig.contexts.iter().map(|entry| entry.name.as_str()).collect();
                Error::usage(format!("{} has no context {name:?}", source.describe())).hint(one_of("--context", &known))
            })
        })
        .transpose()?;

    let cluster_name = nonempty(&flags.cluster)
        .or_else(|| named.map(|context| context.cluster.clone()))
        .filter(|name| !name.is_empty());
    let cluster = match cluster_name {
        Some(name) => {
            let found = kubeconfig.clusters.iter().find(|entry| entry.name == name);
            found.and_then(|entry| entry.cluster.clone()).ok_or_else(|| {
                let known: Vec<&str> = kubeconfig.clusters.iter().map(|entry| entry.name.as_str()).collect();
                Error::usage(format!("{} has no cluster {name:?}", source.describe())).hint(one_of("--cluster", &known))
            })?
        }
        None if flags.server.is_some() => ClusterEntry::default(),
        None => {
            let known: Vec<&str> = kubeconfig.contexts.iter().map(|entry| entry.name.as_str()).collect();
            return Err(Error::usage(format!("{} sets no current context", source.describe()))
                .hint(one_of("--context", &known)));
        }
    };

    let user_name = nonempty(&flags.user).or_else(|| named.and_then(|context| nonempty(&context.user)));
    let mut user = AuthInfo::default();
    if let Some(name) = user_name {
        match kubeconfig.auth_infos.iter().find(|entry| entry.name == name) {
            Some(entry) => user = entry.auth_info.clone().unwrap_or_default(),
            // client-go goes on as nobody where the context names an unknown user; a flag is a mistake.
            None if flags.user.is_some() => {
                let known: Vec<&str> = kubeconfig.auth_infos.iter().map(|entry| entry.name.as_str()).collect();
                return Err(
                    Error::usage(format!("{} has no user {name:?}", source.describe())).hint(one_of("--user", &known))
                );
            }
            None => {}
        }
    }

    let namespace = nonempty(&flags.namespace)
        .or_else(|| named.and_then(|context| nonempty(&context.namespace)))
        .unwrap_or_else(|| "default".to_owned());
    let cluster = with_cluster_flags(flags, cluster)?;
    let user = with_user_flags(flags, user)?;
    Ok(Chosen {
        context: context_name,
        namespace,
        cluster,
        user,
    })
}

fn one_of(flag: &str, known: &[&str]) -> String {
    if known.is_empty() {
        "the file has none: use another kubeconfig".to_owned()
    } else {
        format!("use {flag} with one of: {}", known.join(", "))
    }
}

fn path_text(flag: &str, path: &Path) -> Result<String> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::usage(format!("{flag}: {} is not UTF-8", path.display())))
}

fn with_cluster_flags(flags: &KubeFlags, mut cluster: ClusterEntry) -> Result<ClusterEntry> {
    if flags.insecure_skip_tls_verify && flags.certificate_authority.is_some() {
        return Err(
            Error::usage("--certificate-authority and --insecure-skip-tls-verify exclude each other")
                .hint("leave one of them away"),
        );
    }
    // A flag for one of them takes the place of all three, as in client-go: else both would be set.
    if flags.insecure_skip_tls_verify || flags.certificate_authority.is_some() {
        cluster.insecure_skip_tls_verify = Some(flags.insecure_skip_tls_verify);
        cluster.certificate_authority_data = None;
        cluster.certificate_authority = flags
            .certificate_authority
            .as_deref()
            .map(|path| path_text("--certificate-authority", path))
            .transpose()?;
    }
    // The name in the kubeconfig belongs to the server in the kubeconfig.
    if flags.tls_server_name.is_some() || flags.server.is_some() {
        cluster.tls_server_name.clone_from(&flags.tls_server_name);
    }
    if flags.server.is_some() {
        cluster.server.clone_from(&flags.server);
    }
    if flags.disable_compression {
        cluster.disable_compression = Some(true);
    }
    Ok(cluster)
}

fn with_user_flags(flags: &KubeFlags, mut user: AuthInfo) -> Result<AuthInfo> {
    if let Some(token) = &flags.token {
        if user.username.as_ref().is_some_and(|name| !name.is_empty()) {
            return Err(Error::usage("--token, and a user who has a password")
                .because("only one way to authenticate may be given, as with kubectl")
                .hint("choose another user by --user, or leave --token away"));
        }
        user = AuthInfo {
            token_file: None,
            exec: None,
            auth_provider: None,
            ..with_token(user, token)?
        };
    }
    if let Some(path) = &flags.client_certificate {
        user.client_certificate = Some(path_text("--client-certificate", path)?);
        user.client_certificate_data = None;
    }
    if let Some(path) = &flags.client_key {
        user.client_key = Some(path_text("--client-key", path)?);
        user.client_key_data = None;
    }
    if flags.impersonate.is_some() {
        user.impersonate.clone_from(&flags.impersonate);
    }
    if flags.impersonate_uid.is_some() {
        user.impersonate_uid.clone_from(&flags.impersonate_uid);
    }
    if !flags.impersonate_groups.is_empty() {
        user.impersonate_groups = Some(flags.impersonate_groups.clone());
    }
    let more = user.impersonate_uid.is_some()
        || user
            .impersonate_groups
            .as_ref()
            .is_some_and(|groups| !groups.is_empty());
    if more && user.impersonate.as_ref().is_none_or(String::is_empty) {
        return Err(Error::usage("--as-uid and --as-group need --as").hint("add --as USER"));
    }
    Ok(user)
}

fn settings(
    flags: &KubeFlags,
    defaults: &Defaults,
    environment: &Environment,
    source: &Source,
    chosen: Chosen,
) -> Result<Settings> {
    let Chosen {
        context,
        namespace,
        cluster,
        user,
    } = chosen;
    let of_cluster = |error: Error| error.context(format!("the cluster in {} cannot be used", source.describe()));

    let roots = roots(&cluster).map_err(of_cluster)?;
    let insecure = cluster.insecure_skip_tls_verify.unwrap_or(false);
    if insecure && roots.is_some() {
        return Err(of_cluster(
            Error::usage("a certificate authority together with insecure-skip-tls-verify")
                .hint("remove one of the two fields"),
        ));
    }
    let url = server_url(cluster.server.as_deref().unwrap_or_default()).map_err(of_cluster)?;
    let user = credentials(user, &url).map_err(|error| error.context(format!("the user in {}", source.describe())))?;

    let mut config = kube::Config::new(url);
    config.proxy_url = proxy_for(&config.cluster_url, cluster.proxy_url.as_deref(), &environment.proxies)?;
    config.root_cert = roots;
    config.accept_invalid_certs = insecure;
    config.tls_server_name = cluster.tls_server_name.clone().filter(|name| !name.is_empty());
    config.disable_compression = cluster.disable_compression.unwrap_or(false);
    config.default_namespace = namespace;
    config.auth_info = user;
    if let Some(exec) = &mut config.auth_info.exec
        && exec.provide_cluster_info
    {
        exec.cluster = Some(ExecAuthCluster::try_from(&cluster).map_err(|error| of_cluster(config_error(&error)))?);
    }
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // Retries have to be seen: callers do them, with a deadline and a word on the bar.
    config.default_retry = false;
    user_agent(&mut config, defaults);
    Ok(Settings {
        config,
        context,
        request_timeout: flags.request_timeout.unwrap_or(Duration::from_secs(30)),
    })
}

/// What is sent to that server. Without TLS nothing that anybody on the way could use, as with kubectl; and a token's file
/// beats a token, as in client-go.
fn credentials(mut user: AuthInfo, url: &Uri) -> Result<AuthInfo> {
    if url.scheme_str() == Some("http") {
        return Ok(AuthInfo {
            impersonate: user.impersonate,
            impersonate_uid: user.impersonate_uid,
            impersonate_groups: user.impersonate_groups,
            impersonate_user_extra: user.impersonate_user_extra,
            ..AuthInfo::default()
        });
    }
    let Some(path) = user.token_file.clone().filter(|path| !path.is_empty()) else {
        return Ok(user);
    };
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Error::usage(format!("tokenFile {path} cannot be read")).because(error))?;
    // kube sends the file as it is, and no header can hold the newline that editors and `echo` put at its end. A file
    // without one stays a file, which is read again when the token is renewed.
    if text.trim() == text {
        user.token = None;
        return Ok(user);
    }
    Ok(AuthInfo {
        token_file: None,
        ..with_token(user, text.trim())?
    })
}

/// The user with that token, wrapped as a secret from the start: it is read like a kubeconfig.
fn with_token(user: AuthInfo, token: &str) -> Result<AuthInfo> {
    let parsed: AuthInfo = serde_json::from_value(serde_json::json!({ "token": token })).context("the token")?;
    Ok(AuthInfo {
        token: parsed.token,
        ..user
    })
}

/// Without a scheme it is `http`, as with kubectl: it looks for the scheme before it has read the certificate authority
/// (client-go, `clientcmd.DirectClientConfig.ClientConfig`).
fn server_url(server: &str) -> Result<Uri> {
    let wrong = |why: &str| {
        Error::usage(format!("server {server:?} is not an address"))
            .because(why)
            .hint("write it as https://HOST:PORT")
    };
    if server.is_empty() {
        return Err(Error::usage("it names no server").hint("set the field server, or give --server https://HOST:PORT"));
    }
    let with_scheme = if server.contains("://") {
        server.to_owned()
    } else {
        format!("http://{server}")
    };
    let uri: Uri = with_scheme
        .parse()
        .map_err(|error: http::uri::InvalidUri| wrong(&error.to_string()))?;
    match uri.scheme_str() {
        Some("http" | "https") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        Some("http" | "https") => Err(wrong("it has no host")),
        _ => Err(wrong("it begins with neither http:// nor https://")),
    }
}

/// The certificate authorities of the cluster, `None` where it has none of its own.
fn roots(cluster: &ClusterEntry) -> Result<Option<Vec<Vec<u8>>>> {
    // kube loads file or base64 through this conversion, for credential plugins.
    let loaded = ExecAuthCluster::try_from(&ClusterEntry {
        certificate_authority: cluster.certificate_authority.clone().filter(|path| !path.is_empty()),
        certificate_authority_data: cluster
            .certificate_authority_data
            .clone()
            .filter(|data| !data.is_empty()),
        ..ClusterEntry::default()
    })
    .map_err(|error| config_error(&error).context("certificate-authority or certificate-authority-data"))?;
    let Some(pem) = loaded.certificate_authority_data else {
        return Ok(None);
    };
    let certificates: Vec<Vec<u8>> = CertificateDer::pem_slice_iter(&pem)
        .map(|certificate| certificate.map(|certificate| certificate.to_vec()))
        .collect::<Result<_, _>>()
        .map_err(|error| {
            Error::usage("certificate-authority or certificate-authority-data is not PEM").because(error)
        })?;
    if certificates.is_empty() {
        return Err(
            Error::usage("certificate-authority or certificate-authority-data holds no certificate")
                .hint("it has to contain BEGIN CERTIFICATE"),
        );
    }
    Ok(Some(certificates))
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
