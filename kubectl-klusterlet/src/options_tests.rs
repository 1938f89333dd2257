use proptest::prelude::*;

use super::*;
use crate::test_support::certificate;

fn random() -> RandomNames {
    RandomNames::from_bytes([7; 21])
}

fn completed(
    flag: &str,
    certificate_names: Option<(&str, &str)>,
    files: Option<(&str, &str)>,
) -> (FailoverAgentOptions, Vec<String>) {
    let mut options = FailoverAgentOptions {
        cluster_name: flag.into(),
        ..FailoverAgentOptions::new()
    };
    let sources = NameSources {
        service_account_namespace: None,
        certificate: certificate_names.map(|(c, a)| certificate(&names::agent_user(c, a), c, -60, 3600).0),
        cluster_name: files.map(|(c, _)| c.into()),
        agent_name: files.map(|(_, a)| a.into()),
    };
    let warnings = options.complete(&sources, &random());
    (options, warnings)
}

#[test]
fn the_defaults_are_those_of_the_ancestor() {
    let options = FailoverAgentOptions::new();
    assert_eq!(options.hub_kubeconfig_secret, "hub-kubeconfig-secret");
    assert_eq!(options.hub_kubeconfig_dir, PathBuf::from("/spoke/hub-kubeconfig"));
    assert_eq!(options.cluster_health_check_period, Duration::from_secs(60));
    assert_eq!(options.max_custom_cluster_claims, 20);
    assert!(options.component_namespace.is_empty() && options.cluster_name.is_empty());
    assert!(options.agent_name.is_empty() && options.bootstrap_kubeconfig.is_empty());
    assert!(options.spoke_external_server_urls.is_empty());
}

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    options: FailoverAgentOptions,
}

#[test]
fn flags_without_a_value_are_the_defaults_and_urls_are_not_split() {
    use clap::Parser;
    assert_eq!(
        Command::try_parse_from(["c"]).unwrap().options,
        FailoverAgentOptions::new()
    );
    let parsed = Command::try_parse_from([
        "c",
        "--cluster-name=a",
        "--bootstrap-kubeconfig=/b",
        "--hub-kubeconfig-secret=s",
        "--hub-kubeconfig-dir=/d",
        "--spoke-external-server-urls=https://a,https://b",
        "--spoke-external-server-urls=https://c",
        "--cluster-healthcheck-period=1m30s",
        "--max-custom-cluster-claims=-1",
    ])
    .unwrap()
    .options;
    assert_eq!(parsed.spoke_external_server_urls, ["https://a,https://b", "https://c"]);
    assert_eq!(parsed.cluster_health_check_period, Duration::from_secs(90));
    assert_eq!(parsed.max_custom_cluster_claims, -1);
}

#[test]
fn names_are_found_in_the_documented_order() {
    let drawn = random();
    for (flag, certificate, files, cluster, agent) in [
        ("", None, None, drawn.cluster.as_str(), drawn.agent.as_str()),
        ("cluster1", None, None, "cluster1", drawn.agent.as_str()),
        ("cluster1", None, Some(("cluster2", "agent2")), "cluster1", "agent2"),
        (
            "cluster1",
            Some(("cluster2", "agent2")),
            Some(("cluster3", "agent3")),
            "cluster1",
            "agent2",
        ),
        ("", None, Some(("cluster1", "agent1")), "cluster1", "agent1"),
        ("", Some(("cluster1", "agent1")), None, "cluster1", "agent1"),
        (
            "",
            Some(("cluster1", "agent1")),
            Some(("cluster2", "agent2")),
            "cluster1",
            "agent1",
        ),
    ] {
        let (options, warnings) = completed(flag, certificate, files);
        assert_eq!(
            (options.cluster_name.as_str(), options.agent_name.as_str()),
            (cluster, agent),
            "{flag:?} {certificate:?} {files:?}"
        );
        assert_eq!(options.component_namespace, "open-cluster-management");
        let differ = matches!((certificate, files), (Some(c), Some(f)) if c != f);
        assert_eq!(warnings.len(), if differ { 2 } else { 0 }, "{warnings:?}");
    }
}

#[test]
fn a_certificate_that_cannot_be_read_is_ignored_with_a_warning_and_one_of_others_without() {
    let mut options = FailoverAgentOptions::new();
    let mut sources = NameSources {
        certificate: Some(b"garbage".to_vec()),
        cluster_name: Some("cluster1\n".into()),
        ..NameSources::default()
    };
    let warnings = options.complete(&sources, &random());
    assert_eq!(options.cluster_name, "cluster1");
    assert_eq!(warnings.len(), 1, "{warnings:?}");

    sources.certificate = Some(certificate("test", "x", -60, 3600).0);
    let mut options = FailoverAgentOptions::new();
    assert!(options.complete(&sources, &random()).is_empty());
    assert_eq!(options.cluster_name, "cluster1");
}

#[test]
fn the_namespace_is_the_flag_then_the_pods_then_the_default() {
    for (flag, pod, namespace) in [
        ("", None, "open-cluster-management"),
        ("", Some("pods\n"), "pods"),
        ("mine", Some("pods"), "mine"),
        ("", Some(""), "open-cluster-management"),
    ] {
        let options = FailoverAgentOptions {
            component_namespace: flag.into(),
            ..FailoverAgentOptions::new()
        };
        assert_eq!(options.namespace(pod), namespace);
    }
}

#[test]
fn the_first_error_is_that_of_the_documented_order() {
    let mut options = FailoverAgentOptions::new();
    let what = |options: &FailoverAgentOptions| options.validate().map_err(|error| error.what().to_owned());
    let is = |text: &str| Err(text.to_owned());
    options.max_custom_cluster_claims = -1;
    options.cluster_health_check_period = Duration::ZERO;
    options.spoke_external_server_urls = vec!["https://127.0.0.1:64433".into(), "http://127.0.0.1:8080".into()];
    assert_eq!(what(&options), is("bootstrap-kubeconfig is required"));
    options.bootstrap_kubeconfig = vec!["/file".into()];
    assert_eq!(what(&options), is("cluster name is empty"));
    options.cluster_name = "test-cluster-!@#".into();
    assert_eq!(what(&options), is("agent name is empty"));
    options.agent_name = "a:b".into();
    assert_eq!(what(&options), is("\"http://127.0.0.1:8080\" is invalid"));
    options.spoke_external_server_urls.pop();
    assert_eq!(what(&options), is("cluster healthcheck period must greater than zero"));
    options.cluster_health_check_period = Duration::from_secs(60);
    assert_eq!(
        what(&options),
        is("--max-custom-cluster-claims is -1, and must not be negative")
    );
    options.max_custom_cluster_claims = 0;
    assert_eq!(what(&options), is("cluster name \"test-cluster-!@#\" cannot be used"));
    options.cluster_name = "cluster1".into();
    assert_eq!(what(&options), is("agent name \"a:b\" cannot be used"));
    options.agent_name = "agent1".into();
    assert_eq!(what(&options), Ok(()));
    assert_eq!(options.validate().map_err(|error| error.exit_code()), Ok(()));
}

#[test]
fn defaults_with_bootstrap_and_names_are_valid() {
    let options = FailoverAgentOptions {
        bootstrap_kubeconfig: vec!["/f".into()],
        cluster_name: "c".into(),
        agent_name: "a".into(),
        ..FailoverAgentOptions::new()
    };
    assert!(options.validate().is_ok());
}

#[test]
fn https_urls_have_a_host() {
    for (url, good) in [
        ("", false),
        ("/path/path/path", false),
        ("http://127.0.0.1:8080", false),
        ("https:", false),
        ("https://", false),
        ("https:///path", false),
        ("https://127.0.0.1:6443", true),
        ("https://[::1]:6443", true),
        ("https://api.example.com", true),
    ] {
        assert_eq!(check_https(url).is_ok(), good, "{url}");
    }
}

#[test]
fn durations_are_gos() {
    for (text, seconds) in [
        ("1m", 60.0),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        ("500ms", 0.5),
        ("0", 0.0),
        ("0s", 0.0),
    ] {
        assert_eq!(
            parse_duration(text).unwrap(),
            Duration::from_secs_f64(seconds),
            "{text}"
        );
    }
    for text in ["", "10", "-1s", "soon", "1m30", "1..5s", "s", "999999999999999999999h"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn random_names_pass_validation(bytes: [u8; 21]) {
        let names = RandomNames::from_bytes(bytes);
        prop_assert_eq!(names.cluster.len(), 36);
        prop_assert_eq!(names.cluster.as_bytes()[14], b'4');
        prop_assert_eq!(names.agent.len(), 5);
        let mut options = FailoverAgentOptions { bootstrap_kubeconfig: vec!["/f".into()], ..FailoverAgentOptions::new() };
        options.complete(&NameSources::default(), &names);
        prop_assert!(options.validate().is_ok());
    }

    #[test]
    fn durations_never_panic(text in "\\PC{0,12}") {
        let _ = parse_duration(&text);
    }
}

#[test]
fn an_external_address_is_not_that_of_the_hub() {
    let urls = ["https://a:6443".to_owned(), "https://hub:6443/".to_owned()];
    assert!(not_the_hub(&urls, "https://b:6443").is_ok());
    assert!(not_the_hub(&[], "https://hub:6443").is_ok());
    let error = not_the_hub(&urls, "https://hub:6443").unwrap_err();
    assert!(error.to_string().contains("https://hub:6443/"), "{error}");
}
