use std::fs;

use tempfile::TempDir;

use super::*;
use crate::error::Kind;

const ONE: &str = "
apiVersion: v1
kind: Config
current-context: one
clusters:
- name: one
  cluster: {server: 'https://one.example:6443', insecure-skip-tls-verify: true, tls-server-name: inside}
- name: plain
  cluster: {server: 'http://plain.example:8080', proxy-url: 'http://10.9.8.7:3128'}
users:
- name: admin
  user: {token: from-file}
contexts:
- name: one
  context: {cluster: one, user: admin, namespace: team}
- name: other
  context: {cluster: plain, user: nobody}
- name: broken
  context: {cluster: gone, user: admin}
";

const TWO: &str = "
apiVersion: v1
kind: Config
current-context: two
clusters:
- name: two
  cluster: {server: 'https://two.example:6443', insecure-skip-tls-verify: true}
- name: one
  cluster: {server: 'https://never.example:6443'}
users: []
contexts:
- name: two
  context: {cluster: two, user: admin}
";

struct World {
    directory: TempDir,
    environment: Environment,
    defaults: Defaults,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let environment = Environment {
            home: Some(directory.path().join("home")),
            ..Environment::default()
        };
        let defaults = Defaults {
            fallback_kubeconfig: Some(directory.path().join("admin.conf")),
            user_agent: "kubectl-test/1".to_owned(),
        };
        Self {
            directory,
            environment,
            defaults,
        }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn variable(mut self, paths: &[&Path]) -> Self {
        self.environment.kubeconfig = Some(env::join_paths(paths).unwrap());
        self
    }

    fn resolve(&self, flags: &KubeFlags) -> Result<Settings> {
        resolve(flags, &self.defaults, &self.environment)
    }

    fn server(&self, flags: &KubeFlags) -> String {
        self.resolve(flags).unwrap().config.cluster_url.to_string()
    }
}

fn flags(set: impl FnOnce(&mut KubeFlags)) -> KubeFlags {
    let mut flags = KubeFlags::default();
    set(&mut flags);
    flags
}

fn secret(settings: &Settings) -> String {
    serde_json::to_value(&settings.config.auth_info).unwrap()["token"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn flag_beats_variable_beats_home_beats_fallback() {
    let mut world = World::new();
    let error = world.resolve(&KubeFlags::default()).unwrap_err();
    assert_eq!((error.kind(), error.what()), (Kind::Usage, "no kubeconfig was found"));
    assert!(error.to_string().contains("admin.conf"), "{error}");

    world.file("admin.conf", &ONE.replace("one.example", "fallback.example"));
    assert_eq!(world.server(&KubeFlags::default()), "https://fallback.example:6443/");
    world.file("home/.kube/config", &ONE.replace("one.example", "home.example"));
    assert_eq!(world.server(&KubeFlags::default()), "https://home.example:6443/");
    let variable = world.file("variable", &ONE.replace("one.example", "variable.example"));
    world = world.variable(&[&variable]);
    assert_eq!(world.server(&KubeFlags::default()), "https://variable.example:6443/");
    let flag = world.file("flag", &ONE.replace("one.example", "flag.example"));
    assert_eq!(
        world.server(&flags(|flags| flags.kubeconfig = Some(flag))),
        "https://flag.example:6443/"
    );
}

#[test]
fn a_missing_file_is_skipped_in_the_variable_and_an_error_in_the_flag() {
    let world = World::new();
    let (one, two, gone) = (
        world.file("a", ONE),
        world.file("b", TWO),
        world.directory.path().join("gone"),
    );
    let world = world.variable(&[&gone, &two, Path::new(""), &one]);
    let settings = world.resolve(&KubeFlags::default()).unwrap();
    assert_eq!(
        settings.context.as_deref(),
        Some("two"),
        "the first file that sets it wins"
    );
    assert_eq!(secret(&settings), "from-file", "the user comes from the other file");
    let chosen = flags(|flags| flags.cluster = Some("one".into()));
    assert_eq!(
        world.server(&chosen),
        "https://never.example:6443/",
        "the first entry of a name wins"
    );

    let error = world
        .resolve(&flags(|flags| flags.kubeconfig = Some(gone.clone())))
        .unwrap_err();
    assert!(
        error.what().contains("--kubeconfig") && error.what().contains("gone"),
        "{error}"
    );

    world.file("home/.kube/config", ONE);
    let world = world.variable(&[&gone]);
    let error = world.resolve(&KubeFlags::default()).unwrap_err();
    assert!(
        error.what().contains("$KUBECONFIG") && error.what().contains("gone"),
        "{error}"
    );
}

#[test]
fn context_cluster_user_and_namespace_flags_beat_the_file() {
    let world = World::new();
    world.file("home/.kube/config", ONE);
    let settings = world.resolve(&KubeFlags::default()).unwrap();
    assert_eq!(
        (settings.context.as_deref(), settings.config.default_namespace.as_str()),
        (Some("one"), "team")
    );
    assert_eq!(settings.config.tls_server_name.as_deref(), Some("inside"));

    let other = world
        .resolve(&flags(|flags| flags.context = Some("other".into())))
        .unwrap();
    assert_eq!(other.config.cluster_url.to_string(), "http://plain.example:8080/");
    assert_eq!(other.config.default_namespace, "default");
    assert_eq!(other.config.proxy_url.unwrap().to_string(), "http://10.9.8.7:3128/");
    assert_eq!(
        serde_json::to_value(&other.config.auth_info).unwrap(),
        serde_json::json!({}),
        "an unknown user is nobody"
    );

    let mixed = world
        .resolve(&flags(|flags| {
            flags.cluster = Some("plain".into());
            flags.namespace = Some("mine".into());
        }))
        .unwrap();
    assert_eq!(
        (mixed.config.default_namespace.as_str(), secret(&mixed).as_str()),
        ("mine", ""),
        "nothing secret is sent without TLS"
    );
}

#[test]
fn unknown_names_are_errors_that_list_the_known_ones() {
    let world = World::new();
    world.file("home/.kube/config", ONE);
    let cases: [(KubeFlags, &str, &str); 4] = [
        (
            flags(|flags| flags.context = Some("on".into())),
            "no context \"on\"",
            "one, other, broken",
        ),
        (
            flags(|flags| flags.cluster = Some("on".into())),
            "no cluster \"on\"",
            "one, plain",
        ),
        (flags(|flags| flags.user = Some("on".into())), "no user \"on\"", "admin"),
        (
            flags(|flags| flags.context = Some("broken".into())),
            "no cluster \"gone\"",
            "one, plain",
        ),
    ];
    for (flags, what, hint) in cases {
        let error = world.resolve(&flags).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(
            error.what().contains(what) && error.what().contains(".kube/config"),
            "{error}"
        );
        assert!(error.hints()[0].contains(hint), "{:?}", error.hints());
    }
    world.file(
        "home/.kube/config",
        &ONE.replace("current-context: one", "current-context: ''"),
    );
    let error = world.resolve(&KubeFlags::default()).unwrap_err();
    assert!(error.what().contains("no current context"), "{error}");
}

#[test]
fn server_flags_replace_what_belongs_to_the_old_server() {
    let world = World::new();
    world.file("home/.kube/config", ONE);
    let settings = world
        .resolve(&flags(|flags| flags.server = Some("https://new:1".into())))
        .unwrap();
    assert_eq!(settings.config.cluster_url.to_string(), "https://new:1/");
    assert_eq!(settings.config.tls_server_name, None);
    assert!(settings.config.accept_invalid_certs);

    let authority = rcgen::generate_simple_self_signed(vec!["a".into()]).unwrap().cert;
    let path = world.file("ca.crt", &format!("{}{}", authority.pem(), authority.pem()));
    let settings = world
        .resolve(&flags(|flags| flags.certificate_authority = Some(path)))
        .unwrap();
    assert!(!settings.config.accept_invalid_certs);
    assert_eq!(settings.config.root_cert, Some(vec![authority.der().to_vec(); 2]));
}

#[test]
fn without_a_file_the_flags_are_enough() {
    let world = World::new();
    for (server, url) in [
        ("https://a:6443", "https://a:6443/"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/"),
    ] {
        let settings = world
            .resolve(&flags(|flags| flags.server = Some(server.into())))
            .unwrap();
        assert_eq!(
            (settings.config.cluster_url.to_string().as_str(), settings.context),
            (url, None)
        );
    }
    // as kubectl: that TLS is spoken of elsewhere does not make a scheme
    let bare = flags(|flags| {
        flags.server = Some("a:6443".into());
        flags.insecure_skip_tls_verify = true;
    });
    assert_eq!(world.server(&bare), "http://a:6443/");
    for server in ["ftp://a", "https://", "https://a b", "https:///x"] {
        let error = world
            .resolve(&flags(|flags| flags.server = Some(server.into())))
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{server}: {error}");
        assert!(!error.hints().is_empty(), "{server}");
    }
}

#[test]
fn credential_flags_replace_those_of_the_file() {
    let world = World::new();
    world.file(
        "home/.kube/config",
        &ONE.replace(
            "{token: from-file}",
            "{tokenFile: /gone, client-key-data: eA==, exec: {command: x}}",
        ),
    );
    let settings = world
        .resolve(&flags(|flags| {
            flags.token = Some("from-flag".into());
            flags.client_key = Some("/key".into());
            flags.impersonate = Some("jane".into());
            flags.impersonate_groups = vec!["a".into(), "b".into()];
            flags.impersonate_uid = Some("7".into());
        }))
        .unwrap();
    let user = serde_json::to_value(&settings.config.auth_info).unwrap();
    assert_eq!(
        user,
        serde_json::json!({"token": "from-flag", "client-key": "/key", "as": "jane", "as-uid": "7", "as-groups": ["a", "b"]})
    );
    let error = world
        .resolve(&flags(|flags| flags.impersonate_groups = vec!["a".into()]))
        .unwrap_err();
    assert!(error.hints()[0].contains("--as"), "{error}");
    let error = world
        .resolve(&flags(|flags| {
            flags.insecure_skip_tls_verify = true;
            flags.certificate_authority = Some("/ca".into());
        }))
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
}

#[test]
fn broken_files_are_named_with_the_place() {
    let world = World::new();
    let cases = [
        ("clusters: [\n", "line "),
        ("clusters: 1\n", "line 1"),
        ("current-context: a\ncurrent-context: b\n", "line "),
    ];
    for (text, place) in cases {
        let path = world.file("broken", text);
        let error = world
            .resolve(&flags(|flags| flags.kubeconfig = Some(path.clone())))
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{text}");
        assert!(
            error.what().contains("broken") && error.to_string().contains(place),
            "{text}: {error}"
        );
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let authority = |value: &str| {
        let text = ONE.replace("insecure-skip-tls-verify: true", value);
        world.file("home/.kube/config", &text);
        world.resolve(&KubeFlags::default()).unwrap_err().to_string()
    };
    for value in [
        "certificate-authority: gone.crt",
        "certificate-authority-data: '***'",
        "certificate-authority-data: eA==",
    ] {
        let error = authority(value);
        assert!(
            error.contains(".kube/config") && error.contains("certificate-authority"),
            "{error}"
        );
    }
    let error = authority("insecure-skip-tls-verify: true, certificate-authority-data: eA==");
    assert!(error.contains("certificate-authority"), "{error}");
}

#[test]
fn the_configuration_is_ours_where_kube_differs_from_kubectl() {
    let mut world = World::new();
    world.file("home/.kube/config", ONE);
    world.environment.proxies = ProxyVariables {
        https: Some("http://proxy:3128".into()),
        exceptions: Some("one.example,".into()),
        http: None,
    };
    let settings = world.resolve(&KubeFlags::default()).unwrap();
    assert_eq!(
        settings.config.proxy_url, None,
        "the exception is matched against the server, and a last comma is no error"
    );
    assert!(!settings.config.default_retry);
    assert_eq!(settings.config.headers[0].1, "kubectl-test/1");
    assert_eq!(settings.request_timeout, Duration::from_secs(30));
    world.environment.proxies.exceptions = Some("proxy".into());
    let settings = world.resolve(&KubeFlags::default()).unwrap();
    assert_eq!(settings.config.proxy_url.unwrap().to_string(), "http://proxy:3128/");
}

#[test]
fn a_token_is_read_without_the_newline_behind_it_and_its_file_beats_the_token() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    let https = "https://a.example".parse().unwrap();
    let user = |text: &str| -> AuthInfo {
        std::fs::write(&path, text).unwrap();
        serde_json::from_value(serde_json::json!({"token": "inline", "tokenFile": path})).unwrap()
    };
    let shown = |user: AuthInfo| serde_json::to_value(&user).unwrap();
    let with_newline = credentials(user("from-file\n"), &https).unwrap();
    assert!(with_newline.token_file.is_none(), "{:?}", shown(with_newline));
    // without one it stays a file, so that a renewed token is read
    let without = credentials(user("from-file"), &https).unwrap();
    assert!(without.token.is_none() && without.token_file.is_some());
    std::fs::remove_file(&path).unwrap();
    let user = serde_json::from_value(serde_json::json!({"tokenFile": path})).unwrap();
    let error = credentials(user, &https).unwrap_err();
    assert!(error.to_string().contains("token"), "{error}");
    assert_eq!(error.kind(), Kind::Usage);
}
