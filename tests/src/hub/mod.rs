//! Hubs of Open Cluster Management and their spokes as plain processes on loopback addresses: etcd, kube-apiserver with
//! RBAC and an audit log, kube-controller-manager with its signer, and on a hub Open Cluster Management's own
//! `registration controller`. No nodes, no images, no webhooks.
//!
//! Everybody but the harness has the rights that Open Cluster Management ships, and nobody is in `system:masters` but the
//! harness and the controller manager.

pub mod bench;
mod certificates;
mod manifests;
pub mod proxies;
mod scale;

use std::{
    collections::BTreeMap,
    env, fs,
    fs::File,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use self::certificates::{Authority, kubeconfig, service_account_key, write};
use crate::{
    cache::{self, Built, BuiltHub, say},
    command::{self, Output},
    error::{Context, Error, Result},
    interrupt,
    settings::{Purpose, Settings},
};

/// Namespace of the account that registers clusters.
const BOOTSTRAP_NAMESPACE: &str = "open-cluster-management";
/// Namespace of the hub's controllers.
const HUB_NAMESPACE: &str = "open-cluster-management-hub";
/// Namespace of Open Cluster Management's own agent.
pub const PEER_NAMESPACE: &str = "open-cluster-management-agent";
/// The account that registers clusters.
const BOOTSTRAP_ACCOUNT: &str = "agent-registration-bootstrap";

/// How an API is to be.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// Life of the client certificates that it signs, in Go's notation.
    pub signing_duration: String,
    /// Address of this machine to listen on; else a loopback address of its own.
    pub address: Option<IpAddr>,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            signing_duration: "8760h".into(),
            address: None,
        }
    }
}

/// What an API is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    built: Built,
    hub: BuiltHub,
    root: PathBuf,
}

impl Parts {
    /// Builds what is not built yet.
    ///
    /// # Errors
    /// Something is missing on the machine, or a build fails.
    pub fn ensure(purpose: Purpose) -> Result<Self> {
        Self::beside(purpose, 0)
    }

    /// As [`Parts::ensure`], for one of several that are used at the same time, by its number from 0.
    ///
    /// # Errors
    /// As [`Parts::ensure`].
    pub fn beside(purpose: Purpose, number: usize) -> Result<Self> {
        let settings = Settings::from_env(purpose)?.beside(number);
        Ok(Self {
            built: cache::ensure(&settings)?,
            hub: cache::ensure_hub(&settings)?,
            root: settings.state.with_extension("apis"),
        })
    }

    /// Open Cluster Management's `registration`.
    #[must_use]
    pub fn registration(&self) -> &Path {
        &self.hub.registration
    }
}

/// A Kubernetes API that runs. Dropped, its processes end and its files go.
#[derive(Debug)]
pub struct Api {
    name: String,
    directory: PathBuf,
    address: IpAddr,
    options: ApiOptions,
    parts: Parts,
    serving: Authority,
    processes: BTreeMap<&'static str, Child>,
}

/// Names in the certificate of every server, beside its addresses.
const SERVER_NAMES: &[&str] = &["localhost", "kubernetes.default.svc", "hub.test"];

/// What runs, in the order of its start.
const ETCD: &str = "etcd";
/// The API server.
pub const APISERVER: &str = "kube-apiserver";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// The hub's controller.
pub const CONTROLLER: &str = "registration";

impl Api {
    /// A bare API of this name, which is unique on the machine among those with the same parts.
    ///
    /// # Errors
    /// It does not come up.
    pub fn up(parts: &Parts, name: &str, options: &ApiOptions) -> Result<Self> {
        let directory = parts.root.join(name);
        if directory.exists() {
            fs::remove_dir_all(&directory).what(|| format!("remove {}", directory.display()))?;
        }
        fs::create_dir_all(&directory).what(|| format!("make {}", directory.display()))?;
        // An address of its own for each directory and process that tests.
        let hash = directory
            .to_string_lossy()
            .bytes()
            .chain(std::process::id().to_le_bytes())
            .fold(5381u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
        let [a, b, ..] = hash.to_le_bytes();
        let own = IpAddr::V4(Ipv4Addr::new(127, 79, a, b % 250 + 1));
        let address = options.address.unwrap_or(own);
        let serving = Authority::new(&directory, "serving-ca")?;
        let mut api = Self {
            name: name.to_owned(),
            directory,
            address,
            options: options.clone(),
            parts: parts.clone(),
            serving,
            processes: BTreeMap::new(),
        };
        api.prepare()?;
        for process in [ETCD, APISERVER, CONTROLLER_MANAGER] {
            api.start(process)?;
        }
        Ok(api)
    }

    /// Makes it anew behind the same address, with the same certificate of the server: what was in it is gone, and nobody
    /// who was known is known any more.
    ///
    /// # Errors
    /// It does not come up.
    pub fn rebuild(&mut self) -> Result<()> {
        for process in [CONTROLLER, CONTROLLER_MANAGER, APISERVER, ETCD] {
            self.stop(process)?;
        }
        let data = self.directory.join("etcd");
        fs::remove_dir_all(&data).what(|| format!("remove {}", data.display()))?;
        self.prepare()?;
        for process in [ETCD, APISERVER, CONTROLLER_MANAGER] {
            self.start(process)?;
        }
        Ok(())
    }

    /// Lets it sign with an authority that it does not trust itself.
    ///
    /// # Errors
    /// It does not come up.
    pub fn sign_with_another_authority(&mut self) -> Result<()> {
        Authority::new(&self.directory, "signer")?;
        self.stop(CONTROLLER_MANAGER)?;
        self.start(CONTROLLER_MANAGER)
    }

    /// Gives its server a certificate of a new authority; only that is in `admin.conf` and in new kubeconfigs then.
    ///
    /// # Errors
    /// It does not come up.
    pub fn renew_serving_authority(&mut self) -> Result<()> {
        let old = BASE64_STANDARD.encode(self.serving.pem());
        self.stop(APISERVER)?;
        self.serving = Authority::new(&self.directory, "serving-ca")?;
        self.serving.server(&self.directory, &[self.address], SERVER_NAMES)?;
        let new = BASE64_STANDARD.encode(self.serving.pem());
        for file in ["admin.conf", "controller-manager.conf", "registration.conf"] {
            let path = self.directory.join(file);
            if let Ok(text) = fs::read_to_string(&path) {
                write(&self.directory, file, &text.replace(&old, &new))?;
            }
        }
        self.start(APISERVER)?;
        for process in [CONTROLLER_MANAGER, CONTROLLER] {
            if self.processes.contains_key(process) {
                self.stop(process)?;
                self.start(process)?;
            }
        }
        Ok(())
    }

    fn prepare(&self) -> Result<()> {
        let directory = &self.directory;
        let client = Authority::new(directory, "client-ca")?;
        Authority::new(directory, "front-proxy-ca")?.client(directory, "front-proxy-client")?;
        // What signs, which a test may set apart from what is trusted.
        for kind in ["crt", "key"] {
            let (from, to) = (
                directory.join(format!("client-ca.{kind}")),
                directory.join(format!("signer.{kind}")),
            );
            fs::copy(&from, &to).what(|| format!("copy {} to {}", from.display(), to.display()))?;
        }
        service_account_key(directory)?;
        let service = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
        self.serving.server(directory, &[self.address, service], SERVER_NAMES)?;
        for (file, user, group) in [
            ("admin.conf", "kubernetes-admin", Some("system:masters")),
            ("controller-manager.conf", "system:kube-controller-manager", None),
        ] {
            write(directory, file, &self.kubeconfig(&client.user(user, group)?))?;
        }
        let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]});
        write(directory, "audit.json", &policy.to_string())
    }

    fn kubeconfig(&self, user: &Value) -> String {
        kubeconfig(&self.name, &self.server(), &self.serving.pem(), user)
    }

    /// `https://ADDRESS:PORT`.
    #[must_use]
    pub fn server(&self) -> String {
        format!("https://{}:6443", self.address)
    }

    /// Where its files are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kubeconfig of the administrator.
    #[must_use]
    pub fn admin(&self) -> PathBuf {
        self.directory.join("admin.conf")
    }

    fn arguments(&self, process: &str) -> Vec<String> {
        let (address, file) = (self.address, |name: &str| {
            self.directory.join(name).display().to_string()
        });
        let list = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        match process {
            ETCD => list(format!(
                "--name {name} --data-dir {data} --unsafe-no-fsync --log-level warn --listen-client-urls http://{address}:2379 \
                 --advertise-client-urls http://{address}:2379 --listen-peer-urls http://{address}:2380 \
                 --initial-advertise-peer-urls http://{address}:2380 --initial-cluster {name}=http://{address}:2380",
                name = self.name,
                data = file("etcd"),
            )),
            APISERVER => list(format!(
                "--bind-address {address} --advertise-address {address} --secure-port 6443 --endpoint-reconciler-type none \
                 --etcd-servers http://{address}:2379 --authorization-mode RBAC --enable-bootstrap-token-auth \
                 --client-ca-file {client} --tls-cert-file {certificate} --tls-private-key-file {key} \
                 --requestheader-client-ca-file {proxy} --requestheader-allowed-names front-proxy-client \
                 --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
                 --requestheader-extra-headers-prefix X-Remote-Extra- --service-account-key-file {public} \
                 --service-account-signing-key-file {private} --service-account-issuer https://{name}.test \
                 --service-cluster-ip-range 10.96.0.0/24 --allow-privileged --audit-policy-file {policy} --audit-log-path {audit} \
                 --audit-log-maxsize 200",
                client = file("client-ca.crt"),
                certificate = file("apiserver.crt"),
                key = file("apiserver.key"),
                proxy = file("front-proxy-ca.crt"),
                public = file("sa.pub"),
                private = file("sa.key"),
                name = self.name,
                policy = file("audit.json"),
                audit = file("audit.log"),
            )),
            CONTROLLER_MANAGER => list(format!(
                "--kubeconfig {config} --bind-address {address} --leader-elect=false --use-service-account-credentials \
                 --service-account-private-key-file {private} --root-ca-file {root} --cluster-signing-cert-file {certificate} \
                 --cluster-signing-key-file {key} --cluster-signing-duration {duration} \
                 --controllers csrsigning,csrapproving,csrcleaner,garbagecollector,namespace,serviceaccount,serviceaccount-token,root-ca-cert-publisher,clusterrole-aggregation,bootstrapsigner,tokencleaner",
                config = file("controller-manager.conf"),
                private = file("sa.key"),
                root = file("serving-ca.crt"),
                certificate = file("signer.crt"),
                key = file("signer.key"),
                duration = self.options.signing_duration,
            )),
            _ => list(format!(
                "controller --kubeconfig {} --namespace {HUB_NAMESPACE} --disable-leader-election --listen {address}:8443",
                file("registration.conf")
            )),
        }
    }

    /// Starts what does not run, and waits for an API server to answer.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub fn start(&mut self, process: &'static str) -> Result<()> {
        if self.processes.contains_key(process) {
            return Ok(());
        }
        let program = match process {
            ETCD => self.parts.built.runtime.join("etcd"),
            CONTROLLER => self.parts.hub.registration.clone(),
            _ => self.parts.built.kubernetes.join(process),
        };
        let what = || format!("start {process} of {}", self.name);
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.directory.join(format!("{process}.log")))
            .what(what)?;
        let child = Command::new(program)
            .args(self.arguments(process))
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().what(what)?)
            .stderr(log)
            .spawn()
            .what(what)?;
        i32::try_from(child.id()).into_iter().for_each(interrupt::ends_with_us);
        self.processes.insert(process, child);
        if process != APISERVER {
            return Ok(());
        }
        self.eventually("its API server to be ready", Duration::from_secs(120), |api| {
            Ok(api.kubectl(&["get", "--raw", "/readyz"])?.success().then_some(()))
        })
    }

    /// Ends a process with SIGKILL, and waits for its end.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn stop(&mut self, process: &str) -> Result<()> {
        if let Some(mut child) = self.processes.remove(process) {
            i32::try_from(child.id())
                .into_iter()
                .for_each(interrupt::ends_by_itself);
            child.kill().what(|| format!("end {process} of {}", self.name))?;
            child.wait().what(|| format!("wait for {process} of {}", self.name))?;
        }
        Ok(())
    }

    /// Sends a signal, such as one that makes a server accept connections and never answer.
    ///
    /// # Errors
    /// It does not run.
    pub fn signal(&self, process: &str, signal: Signal) -> Result<()> {
        let what = || format!("signal {process} of {}", self.name);
        let child = self
            .processes
            .get(process)
            .ok_or_else(|| Error::new(what(), "it does not run"))?;
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| Error::new(what(), "it has no PID"))?;
        kill_process(pid, signal).what(what)
    }

    /// Runs `kubectl` as administrator. A command that fails is no error.
    ///
    /// # Errors
    /// It cannot be started or does not end in time.
    pub fn kubectl(&self, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.parts.built.kubernetes.join("kubectl"));
        command.arg("--kubeconfig").arg(self.admin()).args(args);
        command::run(
            &mut command,
            &format!("kubectl {}", args.join(" ")),
            Duration::from_secs(60),
        )
    }

    /// Runs `kubectl` as administrator, which must succeed. Returns what it printed.
    ///
    /// # Errors
    /// It fails.
    pub fn must(&self, args: &[&str]) -> Result<String> {
        let what = format!("kubectl {} on {}", args.join(" "), self.name);
        Ok(self.kubectl(args)?.checked(&what)?.stdout)
    }

    /// An object, or a list.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn get(&self, args: &[&str]) -> Result<Value> {
        let text = self.must(&[&["get", "-o", "json"], args].concat())?;
        serde_json::from_str(&text).what(|| format!("read what kubectl get {} printed", args.join(" ")))
    }

    /// Applies objects.
    ///
    /// # Errors
    /// The API refuses them.
    pub fn apply(&self, text: &str) -> Result<()> {
        let file = self.directory.join("apply.yaml");
        write(&self.directory, "apply.yaml", text)?;
        self.must(&[
            "apply",
            "--server-side",
            "--force-conflicts",
            "-f",
            &file.display().to_string(),
        ])?;
        Ok(())
    }

    /// Looks every 200 ms until something is there.
    ///
    /// # Errors
    /// The first error of the look, or that it is not there in time.
    pub fn eventually<T>(
        &self,
        what: &str,
        deadline: Duration,
        look: impl Fn(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if begin.elapsed() > deadline {
                self.describe();
                return Err(Error::new(
                    format!("wait on {} for {what}", self.name),
                    format!("not after {} s", deadline.as_secs()),
                ));
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// A kubeconfig with a token of a ServiceAccount.
    ///
    /// # Errors
    /// There is no such account.
    pub fn account(&self, file: &str, namespace: &str, account: &str, duration: &str) -> Result<PathBuf> {
        let token = self.must(&[
            "-n",
            namespace,
            "create",
            "token",
            account,
            &format!("--duration={duration}"),
        ])?;
        write(&self.directory, file, &self.kubeconfig(&json!({"token": token.trim()})))?;
        Ok(self.directory.join(file))
    }

    /// A namespace, if it is not there.
    ///
    /// # Errors
    /// The API refuses it.
    pub fn namespace(&self, name: &str) -> Result<()> {
        self.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}).to_string())
    }

    /// Makes it a hub. Returns the kubeconfig that clusters register with.
    ///
    /// # Errors
    /// Something of it is refused.
    pub fn become_hub(&mut self) -> Result<PathBuf> {
        let manifests = self.parts.hub.manifests.clone();
        self.apply(&manifests::hub_definitions(&manifests)?)?;
        self.namespace(BOOTSTRAP_NAMESPACE)?;
        self.namespace(HUB_NAMESPACE)?;
        self.apply(&manifests::hub_rules(&manifests)?)?;
        self.must(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"])?;
        self.account(
            "registration.conf",
            HUB_NAMESPACE,
            "registration-controller-sa",
            "8760h",
        )?;
        self.start(CONTROLLER)?;
        self.bootstrap("bootstrap.conf")
    }

    /// Another kubeconfig that clusters register with.
    ///
    /// # Errors
    /// This is no hub.
    pub fn bootstrap(&self, file: &str) -> Result<PathBuf> {
        self.account(file, BOOTSTRAP_NAMESPACE, BOOTSTRAP_ACCOUNT, "24h")
    }

    /// Gives a spoke the kind ClusterClaim.
    ///
    /// # Errors
    /// The API refuses it.
    pub fn add_claims(&self) -> Result<()> {
        self.apply(&manifests::claims_definition(&self.parts.hub.manifests)?)?;
        self.must(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"])?;
        Ok(())
    }

    /// Gives a spoke the kind AppliedManifestWork.
    ///
    /// # Errors
    /// The API refuses it.
    pub fn add_works(&self) -> Result<()> {
        self.apply(&manifests::works_definition(&self.parts.hub.manifests)?)?;
        self.must(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"])?;
        Ok(())
    }

    /// Gives a spoke what Open Cluster Management's own agent needs. Returns the agent's kubeconfig.
    ///
    /// # Errors
    /// The API refuses it.
    pub fn welcome_peer(&self) -> Result<PathBuf> {
        self.namespace(PEER_NAMESPACE)?;
        self.add_claims()?;
        self.apply(&manifests::peer_rules(&self.parts.hub.manifests)?)?;
        self.account("klusterlet.conf", PEER_NAMESPACE, "klusterlet-registration-sa", "8760h")
    }

    /// Requests in the audit log, watches counted when they begin, of users whose name contains `user`.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn requests(&self, user: &str) -> Result<Vec<AuditEvent>> {
        let file = self.directory.join("audit.log");
        let text = fs::read_to_string(&file).what(|| format!("read {}", file.display()))?;
        Ok(text
            .lines()
            .filter_map(AuditEvent::read)
            .filter(|event| event.user.contains(user))
            .collect())
    }

    /// Tells the end of each log on standard error.
    pub fn describe(&self) {
        for process in self.processes.keys() {
            let text = fs::read_to_string(self.directory.join(format!("{process}.log"))).unwrap_or_default();
            say(&format!(
                "end of the log of {process} of {}:\n{}",
                self.name,
                command::tail(&text, 8)
            ));
        }
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        if thread::panicking() {
            self.describe();
        }
        for (_, mut child) in std::mem::take(&mut self.processes) {
            i32::try_from(child.id())
                .into_iter()
                .for_each(interrupt::ends_by_itself);
            let _ = child.kill();
            let _ = child.wait();
        }
        if env::var_os("SELFHOST_TEST_LAB_KEEP").is_none_or(|value| value.is_empty()) {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// A text as kubeconfigs hold PEM.
#[must_use]
pub fn base64_of(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// A request as the audit log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEvent {
    /// Who.
    pub user: String,
    /// What program.
    pub agent: String,
    /// `get`, `create` and so on.
    pub verb: String,
    /// Resource, with `/SUBRESOURCE`; or the path.
    pub resource: String,
    /// Name of the object, where there is one.
    pub name: String,
    /// Status code of the answer.
    pub code: u64,
    /// When it came, RFC 3339.
    pub time: String,
}

impl AuditEvent {
    fn read(line: &str) -> Option<Self> {
        let event: Value = serde_json::from_str(line).ok()?;
        let text = |pointer: &str| {
            event
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let verb = text("/verb");
        let wanted = if verb == "watch" {
            "ResponseStarted"
        } else {
            "ResponseComplete"
        };
        if text("/stage") != wanted {
            return None;
        }
        let resource = match (text("/objectRef/resource"), text("/objectRef/subresource")) {
            (resource, _) if resource.is_empty() => text("/requestURI"),
            (resource, subresource) if subresource.is_empty() => resource,
            (resource, subresource) => format!("{resource}/{subresource}"),
        };
        Some(Self {
            user: text("/user/username"),
            agent: text("/userAgent"),
            verb,
            resource,
            name: text("/objectRef/name"),
            code: event
                .pointer("/responseStatus/code")
                .and_then(Value::as_u64)
                .unwrap_or(0),
            time: text("/requestReceivedTimestamp"),
        })
    }

    /// Whether it changes something that is kept.
    #[must_use]
    pub fn writes(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audit_line_is_a_request_once_it_is_answered() {
        let line = r#"{"stage":"ResponseComplete","verb":"patch","requestURI":"/x","user":{"username":"u"},"userAgent":"a/1","objectRef":{"resource":"managedclusters","subresource":"status","name":"c"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:00.000000Z"}"#;
        let event = AuditEvent::read(line).unwrap();
        assert_eq!(
            (event.resource.as_str(), event.code, event.writes()),
            ("managedclusters/status", 200, true)
        );
        assert_eq!(
            AuditEvent::read(&line.replace("ResponseComplete", "RequestReceived")),
            None
        );
        let watch = line.replace("\"patch\"", "\"watch\"");
        assert_eq!(AuditEvent::read(&watch), None);
        assert!(
            !AuditEvent::read(&watch.replace("ResponseComplete", "ResponseStarted"))
                .unwrap()
                .writes()
        );
        assert_eq!(AuditEvent::read("garbage"), None);
    }
}
