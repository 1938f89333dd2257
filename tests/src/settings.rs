//! Where a lab lives: its name, network, state and cache.

use std::{env, path::PathBuf};

use crate::error::{Error, Result};

/// Who uses the lab. Tests have a lab of their own, so that they leave the one at the prompt alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `cargo lab`: variables `SELFHOST_LAB_*`.
    Prompt,
    /// `cargo test`: variables `SELFHOST_TEST_LAB_*`.
    Tests,
    /// `cargo demo`: variables `SELFHOST_DEMO_LAB_*`.
    Demo,
    /// `cargo bench-lab`: variables `SELFHOST_BENCH_LAB_*`.
    Benchmark,
}

/// Where a lab lives. Two labs whose name, subnet and state differ can be up side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the bridge, and prefix of all other names on the machine.
    pub name: String,
    /// The first three octets of the nodes' network; node N has the address `SUBNET.(10 + N)`.
    pub subnet: String,
    /// Whether nodes speak IPv6, and it alone, with each other; see [`Settings::address`].
    pub ipv6: bool,
    /// Directory with everything about the running lab. `down` removes it.
    pub state: PathBuf,
    /// Directory with what was built. Kept.
    pub cache: PathBuf,
}

/// Number of the machine itself on the nodes' network.
pub const GATEWAY: u16 = 1;

/// Longest name: with a letter and `-v99` behind it, it must fit into the 15 bytes of an interface name.
const LONGEST_NAME: usize = 10;

impl Settings {
    /// Settings from the environment.
    ///
    /// # Errors
    /// A variable has a value that cannot be used.
    pub fn from_env(purpose: Purpose) -> Result<Self> {
        Self::from_lookup(purpose, &|name| env::var(name).ok().filter(|v| !v.is_empty()))
    }

    /// Settings from any source of variables.
    ///
    /// # Errors
    /// A variable has a value that cannot be used.
    pub fn from_lookup(purpose: Purpose, get: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let (prefix, name, subnet) = match purpose {
            Purpose::Prompt => ("SELFHOST_LAB", "shlab0", "10.78.0"),
            Purpose::Tests => ("SELFHOST_TEST_LAB", "shlab1", "10.78.1"),
            Purpose::Demo => ("SELFHOST_DEMO_LAB", "shlab2", "10.78.2"),
            Purpose::Benchmark => ("SELFHOST_BENCH_LAB", "shlab3", "10.78.3"),
        };
        let name = get(&format!("{prefix}_NAME")).unwrap_or_else(|| name.to_owned());
        let good = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !good || name.len() > LONGEST_NAME {
            return Err(
                Error::new(format!("{prefix}_NAME={name}"), "this cannot be the name of a lab").hint(format!(
                    "use at most {LONGEST_NAME} small letters and digits, a letter first"
                )),
            );
        }
        let subnet = get(&format!("{prefix}_SUBNET")).unwrap_or_else(|| subnet.to_owned());
        let octets: Vec<_> = subnet.split('.').map(str::parse::<u8>).collect();
        if octets.len() != 3 || octets.iter().any(std::result::Result::is_err) {
            return Err(Error::new(
                format!("{prefix}_SUBNET={subnet}"),
                "this is not the start of a /24 network",
            )
            .hint("give three numbers, for example 10.78.7"));
        }
        let absolute = |variable: &str, path: PathBuf| {
            if path.is_absolute() && path.components().count() > 2 {
                Ok(path)
            } else {
                Err(Error::new(
                    format!("{variable}={}", path.display()),
                    "this path is not absolute, or too near the root",
                )
                .hint("the directory is removed with all it holds when the lab goes down: give it one of its own"))
            }
        };
        let variable = format!("{prefix}_DIR");
        let state = get(&variable).map_or_else(
            || PathBuf::from("/var/lib/kubectl-selfhost-lab").join(&name),
            PathBuf::from,
        );
        let state = absolute(&variable, state)?;
        let cache = get("SELFHOST_LAB_CACHE")
            .map(PathBuf::from)
            .or_else(|| get("XDG_CACHE_HOME").map(|c| PathBuf::from(c).join("kubectl-selfhost-lab")))
            .or_else(|| get("HOME").map(|h| PathBuf::from(h).join(".cache/kubectl-selfhost-lab")))
            .ok_or_else(|| {
                Error::new(
                    "find a place for what the lab builds",
                    "neither SELFHOST_LAB_CACHE nor HOME is set",
                )
                .hint("set SELFHOST_LAB_CACHE to a directory with 3 GB of space")
            })?;
        Ok(Self {
            name,
            subnet,
            ipv6: false,
            state,
            cache: absolute("SELFHOST_LAB_CACHE", cache)?,
        })
    }

    /// Settings of another lab that is up at the same time: `0` is this one.
    #[must_use]
    pub fn beside(&self, number: usize) -> Self {
        let Some(letter) = number.checked_sub(1).and_then(|index| b"bcdefgh".get(index)) else {
            return self.clone();
        };
        let suffix = char::from(*letter);
        let mut octets: Vec<u8> = self.subnet.split('.').flat_map(str::parse).collect();
        if let Some(third) = octets.last_mut() {
            *third = third.wrapping_add(100 + *letter);
        }
        let octets: Vec<String> = octets.iter().map(u8::to_string).collect();
        let mut state = self.state.clone().into_os_string();
        state.push(format!("-{suffix}"));
        Self {
            name: format!("{}{suffix}", self.name),
            subnet: octets.join("."),
            state: state.into(),
            ..self.clone()
        }
    }

    /// Address of node `number`, which counts from 1, by which it announces itself.
    #[must_use]
    pub fn address(&self, number: u8) -> String {
        self.address_in(self.ipv6, 10 + u16::from(number))
    }

    /// As [`Settings::address`], as it stands in front of a port.
    #[must_use]
    pub fn host(&self, number: u8) -> String {
        let address = self.address(number);
        if self.ipv6 { format!("[{address}]") } else { address }
    }

    /// Addresses of one number on the nodes' network, with the length of their network: nodes have one of each kind.
    #[must_use]
    pub fn interface(&self, host: u16) -> [String; 2] {
        [
            format!("{}/24", self.address_in(false, host)),
            format!("{}/64", self.address_in(true, host)),
        ]
    }

    fn address_in(&self, ipv6: bool, host: u16) -> String {
        if ipv6 {
            // unique local addresses (RFC 4193), with the three numbers of the IPv4 network in them
            format!("fd00:{}::{host}", self.subnet.replace('.', ":"))
        } else {
            format!("{}.{host}", self.subnet)
        }
    }

    /// Address of the machine itself on the nodes' network.
    #[must_use]
    pub fn gateway(&self) -> String {
        self.address_in(false, GATEWAY)
    }

    /// Kubeconfig of the administrator, who has all rights by RBAC (not through `system:masters`).
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.state.join("admin.conf")
    }

    /// Kubeconfig of the ordinary user, who has only the rights that the meters need.
    #[must_use]
    pub fn user_kubeconfig(&self) -> PathBuf {
        self.state.join("user.conf")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Settings> {
        Settings::from_lookup(Purpose::Prompt, &|name| {
            pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn defaults_keep_all_purposes_apart() {
        let home = |name: &str| (name == "HOME").then(|| "/home/somebody".to_owned());
        let all = [Purpose::Prompt, Purpose::Tests, Purpose::Demo, Purpose::Benchmark]
            .map(|purpose| Settings::from_lookup(purpose, &home).unwrap());
        assert_eq!(all[0].address(1), "10.78.0.11");
        let ipv6 = Settings {
            ipv6: true,
            ..all[0].clone()
        };
        assert_eq!(
            (ipv6.address(1).as_str(), ipv6.host(2).as_str()),
            ("fd00:10:78:0::11", "[fd00:10:78:0::12]")
        );
        for (index, one) in all.iter().enumerate() {
            for other in &all[index + 1..] {
                assert_ne!(one.name, other.name);
                assert_ne!(one.subnet, other.subnet);
                assert_ne!(one.state, other.state);
                assert_eq!(one.cache, other.cache, "all build the same");
            }
        }
    }

    #[test]
    fn labs_side_by_side_share_nothing_but_what_was_built() {
        let home = |name: &str| (name == "HOME").then(|| "/home/somebody".to_owned());
        let one = Settings::from_lookup(Purpose::Tests, &home).unwrap();
        assert_eq!(one.beside(0), one);
        let other = one.beside(1);
        assert_eq!(other.name, format!("{}b", one.name));
        assert_ne!(other.subnet, one.subnet);
        assert_eq!(other.subnet.split('.').count(), 3);
        assert!(other.state.to_string_lossy().ends_with("-b"), "{other:?}");
        assert_eq!(other.cache, one.cache);
    }

    #[test]
    fn bad_values_name_the_variable() {
        for (variable, value) in [
            ("SELFHOST_LAB_NAME", "two words"),
            ("SELFHOST_LAB_NAME", "0lab"),
            ("SELFHOST_LAB_NAME", "alabwithaverylongname"),
            ("SELFHOST_LAB_SUBNET", "10.78"),
            ("SELFHOST_LAB_SUBNET", "10.78.0.0"),
            ("SELFHOST_LAB_SUBNET", "10.78.300"),
            ("SELFHOST_LAB_DIR", "relative/path"),
            ("SELFHOST_LAB_DIR", "/"),
            ("SELFHOST_LAB_DIR", "/etc"),
        ] {
            let error = from(&[("HOME", "/home/somebody"), (variable, value)]).unwrap_err();
            assert!(error.what.contains(variable), "{error}");
            assert!(!error.hint.is_empty(), "{error}");
        }
        assert!(from(&[]).unwrap_err().why.contains("HOME"));
    }
}
