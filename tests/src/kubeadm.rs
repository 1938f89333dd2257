//! What kubeadm, kubelet, containerd and the node's first process are told. Pure functions.

use serde_json::{Value, json};

use crate::{
    cache::{Built, PAUSE_IMAGE},
    lab::Options,
    settings::Settings,
};

/// Directories of which each node has its own version. The same names exist, empty, on the machine itself.
pub const PRIVATE: [&str; 17] = [
    "/etc/kubernetes",
    "/etc/containerd",
    "/etc/cni",
    "/opt/cni",
    "/opt/selfhost",
    "/usr/libexec/kubernetes",
    "/var/lib/selfhost",
    "/var/lib/selfhost-lab-home",
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/etcd",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
    "/var/log/kubernetes",
    "/run/containerd",
    "/run/netns",
];

/// Files of which each node has its own version, a copy of the machine's at first: kubeadm adds users to them where the
/// components are not to run as root.
pub const PRIVATE_FILES: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// Home directory inside nodes: not the machine's, where a kubeconfig of somebody's may lie.
pub const HOME: &str = "/var/lib/selfhost-lab-home";

/// Those of [`PRIVATE`] that are empty after a real power cycle, as `/run` is in memory.
pub const VOLATILE: [&str; 2] = ["/run/containerd", "/run/netns"];

/// Name of the node's host and Node object.
#[must_use]
pub fn node_name(number: u8) -> String {
    format!("node{number}")
}

/// Secrets of one cluster, made anew for each.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// Bootstrap token.
    pub token: String,
    /// Key under which `kubeadm init` uploads the certificates for other control-plane nodes, in hex.
    pub certificate_key: String,
}

impl Secrets {
    /// Makes them of 43 random bytes.
    #[must_use]
    pub fn from_random(bytes: &[u8; 43]) -> Self {
        let (key, token) = bytes.split_at(32);
        let hex: String = token.iter().map(|b| format!("{b:02x}")).collect();
        let (id, secret) = hex.split_at(6);
        Self {
            token: format!("{id}.{secret}"),
            certificate_key: key.iter().map(|b| format!("{b:02x}")).collect(),
        }
    }
}

/// Configuration for `kubeadm init` on the first node.
#[must_use]
pub fn init_configuration(settings: &Settings, version: &str, options: &Options, secrets: &Secrets) -> String {
    let (address, host) = (settings.address(1), settings.host(1));
    let networks = networks(settings.ipv6);
    let port = options.port;
    let Secrets { token, certificate_key } = secrets;
    let extra = options.cluster_configuration.trim_end();
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: '{address}', bindPort: {port}}}
nodeRegistration: {{name: node1, criSocket: 'unix:///run/containerd/containerd.sock'}}
bootstrapTokens: [{{token: '{token}', ttl: 2h0m0s}}]
certificateKey: '{certificate_key}'
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {version}
controlPlaneEndpoint: '{host}:{port}'
networking: {{{networks}}}
{extra}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
cgroupsPerQOS: false
enforceNodeAllocatable: [none]
localStorageCapacityIsolation: false
"
    )
}

/// Networks of Pods and Services, as fields of kubeadm's `networking`.
fn networks(ipv6: bool) -> &'static str {
    if ipv6 {
        "podSubnet: 'fd00:244::/56', serviceSubnet: 'fd00:96::/112'"
    } else {
        "podSubnet: 10.244.0.0/16"
    }
}

/// Configuration for `kubeadm join` on node `number`.
#[must_use]
pub fn join_configuration(settings: &Settings, number: u8, options: &Options, secrets: &Secrets) -> String {
    let (first, own, name, port) = (
        settings.host(1),
        settings.address(number),
        node_name(number),
        options.port,
    );
    let Secrets { token, certificate_key } = secrets;
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken: {{token: '{token}', apiServerEndpoint: '{first}:{port}', unsafeSkipCAVerification: true}}
nodeRegistration: {{name: {name}, criSocket: 'unix:///run/containerd/containerd.sock'}}
controlPlane:
  localAPIEndpoint: {{advertiseAddress: '{own}', bindPort: {port}}}
  certificateKey: '{certificate_key}'
"
    )
}

/// Configuration of containerd.
#[must_use]
pub fn containerd_configuration() -> String {
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
# These would use directories that all nodes share.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  # Where root lacks CAP_SYS_RESOURCE, a score below that of containerd itself is refused.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
"#
    )
}

/// Configuration of the Pods' network, which does not reach beyond the node.
#[must_use]
pub fn cni_configuration(number: u8, ipv6: bool) -> Value {
    let (subnet, everywhere) = if ipv6 {
        (format!("fd00:244:0:{number}::/64"), "::/0")
    } else {
        (format!("10.244.{number}.0/24"), "0.0.0.0/0")
    };
    json!({
        "cniVersion": "1.0.0", "name": "pods",
        "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": everywhere}]},
        }],
    })
}

/// What the node's first process does: see `lab/labtool/init.go`.
#[must_use]
pub fn node_description(settings: &Settings, built: &Built, number: u8) -> Value {
    let directory = settings.state.join(node_name(number));
    let file = |name: &str| directory.join(name).display().to_string();
    let name = node_name(number);
    let kubelet = [
        built.kubernetes.join("kubelet").display().to_string(),
        "--config=/var/lib/kubelet/config.yaml".to_owned(),
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf".to_owned(),
        "--kubeconfig=/etc/kubernetes/kubelet.conf".to_owned(),
        format!("--hostname-override={name}"),
        format!("--node-ip={}", settings.address(number)),
        "--v=2".to_owned(),
    ];
    json!({
        "hostname": name,
        "files": file("files"),
        "private": PRIVATE,
        "private_files": PRIVATE_FILES,
        // kubeadm would ask the machine's systemd to stop and start the kubelet: the machine's.
        "hidden": ["/run/systemd", "/run/dbus"],
        "shared": ["/var/lib/kubelet", "/run/netns"],
        "pid_file": file("pid"),
        "services": [
            {"name": "containerd", "command": [built.runtime.join("containerd")], "after": [], "log": file("containerd.log")},
            // kubeadm writes this file last, as it would then start the kubelet.
            {"name": "kubelet", "command": kubelet, "after": ["/var/lib/kubelet/config.yaml"], "log": file("kubelet.log")},
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_have_kubeadms_format() {
        let secrets = Secrets::from_random(&[0xab; 43]);
        assert_eq!(secrets.token, "ababab.abababababababab");
        assert_eq!(secrets.certificate_key.len(), 64);
    }

    #[test]
    fn extra_configuration_belongs_to_the_cluster_configuration() {
        let settings = Settings {
            name: "x".into(),
            subnet: "10.1.2".into(),
            ipv6: false,
            state: "/var/lib/x".into(),
            cache: "/var/cache/x".into(),
        };
        let options = Options {
            port: 7443,
            cluster_configuration: "apiServer: {certSANs: [x]}\n".into(),
            ..Options::default()
        };
        let text = init_configuration(&settings, "v1.2.3", &options, &Secrets::from_random(&[1; 43]));
        let documents: Vec<_> = text.split("---\n").collect();
        assert_eq!(documents.len(), 3);
        assert!(documents[1].contains("\napiServer: {certSANs: [x]}\n"), "{text}");
        assert!(documents[1].contains("'10.1.2.11:7443'"), "{text}");
        assert!(
            join_configuration(&settings, 2, &options, &Secrets::from_random(&[1; 43]))
                .contains("'10.1.2.12', bindPort: 7443")
        );
    }
}
