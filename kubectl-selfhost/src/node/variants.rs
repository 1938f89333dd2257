//! What the guard makes of a component's original manifest: the fallback, the sharing variant, and where it listens.

use crate::component_spec::{BindAddress, ComponentSpec};
use crate::fallback::build_fallback;
use crate::mutators::{permit_port_sharing, ready_path};
use crate::names::Component;
use crate::node::await_port::describe;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr};

/// Where a component listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its secure port.
    pub port: u16,
    /// The address it is told to bind.
    pub bound: IpAddr,
    /// The path that tells whether it is ready.
    pub path: &'static str,
}

impl Endpoint {
    /// Reads it from a Pod.
    ///
    /// # Errors
    /// Names the flag that cannot be read.
    pub fn of(component: Component, pod: &Value) -> Result<Self, String> {
        let spec = ComponentSpec::new(component, pod).map_err(|error| describe(&error))?;
        let port = spec.secure_port().map_err(|error| describe(&error))?;
        let bind = spec.bind_address().map_err(|error| describe(&error))?;
        let bound = match bind {
            BindAddress::Unspecified => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            BindAddress::Loopback(address) | BindAddress::Specific(address) => address,
        };
        Ok(Self {
            port,
            bound,
            path: ready_path(&spec, component),
        })
    }

    /// The address at which the component can be asked on its own node.
    ///
    /// A dual-stack wildcard answers 127.0.0.1 too, and that is not the address by which an apiserver calls itself.
    #[must_use]
    pub fn probe_address(self) -> IpAddr {
        if self.bound.is_unspecified() {
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        } else {
            self.bound
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Variants {
    /// The fallback's manifest.
    pub fallback: String,
    /// The original's Pod with port sharing on.
    pub sharing: String,
    /// Where the component listens.
    pub endpoint: Endpoint,
    /// The original's Pod.
    pub pod: Value,
}

/// Makes all of it.
///
/// # Errors
/// What in the manifest stands in the way, in words.
pub fn build(component: Component, manifest: &[u8]) -> Result<Variants, String> {
    let text = std::str::from_utf8(manifest).map_err(|_| "the manifest is not UTF-8".to_owned())?;
    let pod = shared::yaml::first_document(text).map_err(|error| describe(&error))?;
    let fallback = build_fallback(component, &pod).map_err(|error| describe(&error))?;
    let mut sharing = pod.clone();
    permit_port_sharing(&mut sharing, component).map_err(|error| describe(&error))?;
    Ok(Variants {
        fallback: shared::yaml::to_string(&fallback).map_err(|error| describe(&error))?,
        sharing: shared::yaml::to_string(&sharing).map_err(|error| describe(&error))?,
        endpoint: Endpoint::of(component, &pod)?,
        pod,
    })
}
