//! The nodes' network: one bridge, and for each node a network namespace with one interface on it.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Command};

use crate::{
    command::must,
    error::{Error, Result},
    settings::{GATEWAY, Settings},
};

/// Name of a node's network namespace, as `ip netns` knows it.
#[must_use]
pub fn namespace(settings: &Settings, number: u8) -> String {
    format!("{}-{number}", settings.name)
}

/// Makes the bridge and the node's namespace where they are not there yet.
///
/// # Errors
/// `ip` refuses, or the network is in use by something else.
pub fn ensure(settings: &Settings, number: u8) -> Result<()> {
    let (bridge, namespace) = (&settings.name, namespace(settings, number));
    if !interface_exists(bridge) {
        let routes = must("ip", &["-4", "route", "show", &format!("{}.0/24", settings.subnet)])?;
        if !routes.stdout.trim().is_empty() {
            return Err(Error::new(format!("use the network {}.0/24", settings.subnet), format!("it is in use: {}", routes.stdout.trim()))
                .hint("choose another one by the variable SELFHOST_LAB_SUBNET (SELFHOST_TEST_LAB_SUBNET in tests, SELFHOST_DEMO_LAB_SUBNET in the demo, SELFHOST_BENCH_LAB_SUBNET in the benchmark), such as 10.78.7"));
        }
        must("ip", &["link", "add", bridge, "type", "bridge"])?;
        for address in addresses(settings, GATEWAY) {
            must(
                "ip",
                &[&["addr", "add"], words(&address).as_slice(), &["dev", bridge]].concat(),
            )?;
        }
        must("ip", &["link", "set", bridge, "up"])?;
    }
    if namespace_file(&namespace).exists() {
        return Ok(());
    }
    let veth = format!("{}-v{number}", settings.name);
    must("ip", &["netns", "add", &namespace])?;
    must(
        "ip",
        &[
            "link", "add", &veth, "type", "veth", "peer", "name", "eth0", "netns", &namespace,
        ],
    )?;
    must("ip", &["link", "set", &veth, "master", bridge, "up"])?;
    let gateway = settings.gateway();
    for address in addresses(settings, 10 + u16::from(number)) {
        let args = [
            &["-n", &namespace, "addr", "add"],
            words(&address).as_slice(),
            &["dev", "eth0"],
        ]
        .concat();
        must("ip", &args)?;
    }
    for args in [
        &["link", "set", "lo", "up"][..],
        &["link", "set", "eth0", "up"],
        &["route", "add", "default", "via", &gateway],
    ] {
        must("ip", &[&["-n", &namespace], args].concat())?;
    }
    Ok(())
}

/// Addresses of one number, as `ip` takes them. IPv6 ones can be used at once: nobody else has them. Where the machine has no
/// IPv6, there are none.
fn addresses(settings: &Settings, host: u16) -> Vec<String> {
    let [ipv4, ipv6] = settings.interface(host);
    let mut all = vec![ipv4];
    if Path::new("/proc/sys/net/ipv6").exists() {
        all.push(format!("{ipv6} nodad"));
    }
    all
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

/// Removes the bridge and every namespace of this lab, whatever is there of it.
///
/// # Errors
/// `ip` refuses.
pub fn remove(settings: &Settings) -> Result<()> {
    for namespace in namespaces(settings) {
        must("ip", &["netns", "del", &namespace])?;
    }
    if interface_exists(&settings.name) {
        must("ip", &["link", "del", &settings.name])?;
    }
    // The other end of a veth pair goes with its namespace, but a moment later.
    for veth in interfaces(settings) {
        let _ = Command::new("ip").args(["link", "del", &veth]).output();
    }
    Ok(())
}

/// Network namespaces of this lab that are there.
#[must_use]
pub fn namespaces(settings: &Settings) -> Vec<String> {
    ours("/run/netns", &format!("{}-", settings.name))
}

/// Ends of this lab's veth pairs that are there.
#[must_use]
pub fn interfaces(settings: &Settings) -> Vec<String> {
    ours("/sys/class/net", &format!("{}-v", settings.name))
}

/// What the kernel calls the node's network namespace, where it is there.
#[must_use]
pub fn inode(settings: &Settings, number: u8) -> Option<u64> {
    fs::metadata(namespace_file(&namespace(settings, number)))
        .ok()
        .map(|m| m.ino())
}

/// PIDs, on the machine, of the processes in a network namespace: for a node's all but those of Pods with a network of
/// their own.
#[must_use]
pub fn processes(inode: u64) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter(|pid| fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|m| m.ino() == inode))
        .collect()
}

fn ours(directory: &str, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names
        .filter(|n| n.strip_prefix(prefix).is_some_and(|r| r.parse::<u8>().is_ok()))
        .collect();
    names.sort();
    names
}

fn namespace_file(namespace: &str) -> std::path::PathBuf {
    Path::new("/run/netns").join(namespace)
}

fn interface_exists(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}
