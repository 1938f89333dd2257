//! The way to the hub: proxies, names, authorities, clocks.

use tests::hub::proxies::{Tunnel, WrongClock};

use super::*;

/// The bootstrap kubeconfig with another cluster entry, written whole.
fn write_bootstrap(pair: &Pair, file: &Path, change: impl FnOnce(&mut Value)) {
    let mut object: Value = serde_json::from_str(&fs::read_to_string(&pair.bootstrap).unwrap()).unwrap();
    change(&mut object["clusters"][0]["cluster"]);
    let fresh = file.with_extension("new");
    fs::write(&fresh, object.to_string()).unwrap();
    fs::rename(&fresh, file).unwrap();
}

#[test]
fn a_hub_behind_a_proxy_whose_authority_is_renewed_and_whose_clock_is_wrong() {
    let mut pair = Pair::up();
    let server = pair.hub.server();
    let tunnel = Tunnel::start(server.trim_start_matches("https://")).unwrap();
    let (file, authority) = (
        pair.spoke.directory().join("far.conf"),
        pair.spoke.directory().join("hub-ca.crt"),
    );
    let copy_authority = |pair: &Pair| {
        fs::copy(pair.hub.directory().join("serving-ca.crt"), &authority)
            .map(|_| ())
            .unwrap();
    };
    copy_authority(&pair);
    // only the proxy knows this host, and the certificate has another name
    let far = |cluster: &mut Value| {
        *cluster = json!({"server": "https://hub.invalid:6443", "proxy-url": tunnel.url(), "tls-server-name": "hub.test", "certificate-authority": "hub-ca.crt"});
    };
    write_bootstrap(&pair, &file, far);
    let mut agent = pair.run_with("far", &file, &["--agent-name=bcdfg"]);
    pair.wait_for_request("far");
    ok(&pair.accept("far", &[]));
    pair.wait_until_available("far");
    let asked = tunnel.asked();
    assert!(
        !asked.is_empty() && asked.iter().all(|target| target == "hub.invalid:6443"),
        "{asked:?}"
    );
    // what is kept is enough for any other client
    let kubeconfig = pair.files("far").join("kubeconfig");
    let kept = fs::read_to_string(&kubeconfig).unwrap();
    for text in [
        tunnel.url().as_str(),
        "tls-server-name: hub.test",
        "certificate-authority: ",
        "hub.invalid",
    ] {
        assert!(kept.contains(text), "{text}: {kept}");
    }
    let kubeconfig = kubeconfig.display().to_string();
    ok(&pair
        .hub
        .kubectl(&[
            "--kubeconfig",
            &kubeconfig,
            "get",
            "managedcluster",
            "far",
            "-o",
            "name",
        ])
        .unwrap());

    // the authority of the hub's server is renewed; the file beside the bootstrap kubeconfig changes after it
    pair.set_lease("far", 4);
    pair.hub.renew_serving_authority().unwrap();
    agent.wait_for_line("unknown authority");
    agent.wait_for_line("trusted: ");
    let before = pair.lease("far");
    thread::sleep(Duration::from_secs(6));
    assert_eq!(
        pair.lease("far"),
        before,
        "a server that is not trusted is not spoken to"
    );
    copy_authority(&pair);
    pair.wait_for_renewal("far", MINUTE);

    // the same hub at its own address: the stored kubeconfig follows, and nobody has to approve anything
    let data = tests::hub::base64_of(&fs::read_to_string(&authority).unwrap());
    write_bootstrap(&pair, &file, |cluster| {
        *cluster = json!({"server": server, "certificate-authority-data": data});
    });
    agent.wait_for_line("the hub is the same behind what changed");
    let asked = tunnel.asked().len();
    pair.wait_for_renewal("far", MINUTE);
    assert_eq!(tunnel.asked().len(), asked, "the proxy is not used any more");

    // a bootstrap kubeconfig that leads nowhere stops nothing, not even a new process
    write_bootstrap(&pair, &file, |cluster| {
        *cluster = json!({"server": "https://127.0.0.1:1", "certificate-authority-data": data});
    });
    agent.wait_for_line("the stored credentials are used as they are");
    pair.wait_for_renewal("far", MINUTE);
    assert_eq!(agent.terminate(), Some(0));
    let mut agent = pair.run_with("far", &file, &["--agent-name=bcdfg"]);
    pair.wait_for_renewal("far", MINUTE);

    // the hub's clock, as its answers tell it: ten minutes ahead
    let clock = WrongClock::start(&pair.hub, "far", "bcdfg").unwrap();
    clock.set_ahead(600);
    write_bootstrap(&pair, &file, |cluster| {
        *cluster = json!({"server": clock.url(), "certificate-authority-data": data});
    });
    agent.wait_for_line("the clocks of this machine and of the hub differ");
    let status = pair.status("far");
    let skew = status["hubs"][0]["clockSkewSeconds"].as_i64().unwrap();
    assert!((598..=602).contains(&skew), "{status:#}");
    let troubles = status["troubles"].to_string();
    assert!(troubles.contains("s ahead of this machine's"), "{troubles}");
    clock.set_ahead(0);
    agent.wait_for_line("the clocks agree again");
    assert_eq!(pair.all_requests("far"), 1, "one certificate was enough for all of it");
    assert!(agent.lives());
}
