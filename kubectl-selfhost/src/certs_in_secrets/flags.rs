//! The flags of the components that name files, as of Kubernetes 1.29 to 1.37 (`--help` of each; k8s.io/apiserver
//! `pkg/server/options`, k8s.io/kubernetes `cmd/kube-controller-manager/app/options`, `cmd/kube-scheduler/app/options`).

/// What a file is to its component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A certificate with its key, a kubeconfig, a token: what proves who somebody is.
    Credential,
    /// Certificates of authorities: whom the component believes.
    Authority,
    /// Something else that the component reads.
    Configuration,
    /// The keys of the encryption at rest.
    Encryption,
    /// Something that the component writes, or a socket.
    Output,
    /// A flag that is not in this table, with a value that looks like a path.
    Unknown,
}

/// What a flag names; `None` for a flag that is not in the table.
pub(super) fn kind_of(flag: &str) -> Option<Kind> {
    let kind = match flag {
        "authentication-kubeconfig"
        | "authorization-kubeconfig"
        | "kubeconfig"
        | "audit-webhook-config-file"
        | "authentication-token-webhook-config-file"
        | "authorization-webhook-config-file"
        | "cluster-signing-cert-file"
        | "cluster-signing-key-file"
        | "cluster-signing-kube-apiserver-client-cert-file"
        | "cluster-signing-kube-apiserver-client-key-file"
        | "cluster-signing-kubelet-client-cert-file"
        | "cluster-signing-kubelet-client-key-file"
        | "cluster-signing-kubelet-serving-cert-file"
        | "cluster-signing-kubelet-serving-key-file"
        | "cluster-signing-legacy-unknown-cert-file"
        | "cluster-signing-legacy-unknown-key-file"
        | "etcd-certfile"
        | "etcd-keyfile"
        | "kubelet-client-certificate"
        | "kubelet-client-key"
        | "proxy-client-cert-file"
        | "proxy-client-key-file"
        | "service-account-key-file"
        | "service-account-private-key-file"
        | "service-account-signing-key-file"
        | "tls-cert-file"
        | "tls-private-key-file"
        | "tls-sni-cert-key"
        | "token-auth-file" => Kind::Credential,
        "client-ca-file"
        | "etcd-cafile"
        | "kubelet-certificate-authority"
        | "oidc-ca-file"
        | "peer-ca-file"
        | "requestheader-client-ca-file"
        | "root-ca-file" => Kind::Authority,
        "admission-control-config-file"
        | "audit-policy-file"
        | "authentication-config"
        | "authorization-config"
        | "authorization-policy-file"
        | "cloud-config"
        | "config"
        | "egress-selector-config-file"
        | "policy-config-file"
        | "pv-recycler-pod-template-filepath-hostpath"
        | "pv-recycler-pod-template-filepath-nfs"
        | "tracing-config-file" => Kind::Configuration,
        "encryption-provider-config" => Kind::Encryption,
        "audit-log-path"
        | "cert-dir"
        | "debug-socket-path"
        | "flex-volume-plugin-dir"
        | "service-account-signing-endpoint" => Kind::Output,
        _ => return None,
    };
    Some(kind)
}

/// The paths in a flag's value: one, but for the pair of `--tls-sni-cert-key=CERTIFICATE,KEY:NAMES`.
pub(super) fn paths_in<'a>(flag: &str, value: &'a str) -> Vec<&'a str> {
    let paths = match flag {
        "tls-sni-cert-key" => value
            .split(':')
            .next()
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .collect(),
        _ => vec![value],
    };
    // an empty value is the way to switch a file off: an authority that is kept elsewhere has no key here
    paths.into_iter().filter(|path| !path.is_empty()).collect()
}
