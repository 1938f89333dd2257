//! Open Cluster Management's own files, which are templates, as what an API takes.

use std::{fs, path::Path};

use crate::error::{Context, Result};

/// Values of the templates, by what stands in them.
const VALUES: [(&str, &str); 8] = [
    (".Release.Namespace", "open-cluster-management"),
    (".ClusterManagerNamespace", "open-cluster-management-hub"),
    (".ClusterManagerName", "cluster-manager"),
    (".AgentNamespace", "open-cluster-management-agent"),
    (".KlusterletNamespace", "open-cluster-management-agent"),
    (".KlusterletName", "klusterlet"),
    (".RegistrationServiceAccount", "klusterlet-registration-sa"),
    (".ExternalServerURL", ""),
];

/// Fills in a template. Optional blocks (labels, other ways to authenticate) are left out, where `optional` says so; lines
/// of control are left out always.
fn render(text: &str, optional: bool) -> String {
    let mut result = String::new();
    let mut depth = 0u32;
    for line in text.lines() {
        let mut line = line.to_owned();
        for (name, value) in VALUES {
            for form in [format!("{{{{ {name} }}}}"), format!("{{{{{name}}}}}")] {
                line = line.replace(&form, value);
            }
        }
        if !line.contains("{{") {
            if depth == 0 || optional {
                result.push_str(&line);
                result.push('\n');
            }
            continue;
        }
        let control = line
            .trim_start()
            .trim_start_matches("{{")
            .trim_start_matches('-')
            .trim_start();
        if control.starts_with("if ") || control.starts_with("range ") {
            depth += 1;
        } else if control.starts_with("end") {
            depth = depth.saturating_sub(1);
        }
    }
    result
}

fn read(root: &Path, path: &str) -> Result<String> {
    let file = root.join(path);
    fs::read_to_string(&file).what(|| format!("read {}", file.display()))
}

/// Files of a directory whose name contains one of these.
fn definitions(root: &Path, directory: &str, names: &[&str]) -> Result<String> {
    let what = || format!("read {directory}");
    let mut files: Vec<_> = fs::read_dir(root.join(directory))
        .what(what)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| names.iter().any(|wanted| name.contains(wanted)) && name.ends_with(".crd.yaml"))
        .collect();
    files.sort();
    let mut text = String::new();
    for file in files {
        text.push_str("---\n");
        text.push_str(&read(root, &format!("{directory}/{file}"))?);
        text.push('\n');
    }
    Ok(text)
}

/// The kinds that a hub's controllers watch; without one of them they wait for ever.
pub(super) fn hub_definitions(root: &Path) -> Result<String> {
    Ok([
        definitions(
            root,
            "cluster/v1",
            &["_clusters.open-cluster-management.io_managedclusters"],
        )?,
        definitions(
            root,
            "cluster/v1beta2",
            &["managedclustersets", "managedclustersetbindings"],
        )?,
        definitions(root, "work/v1", &["_manifestworks"])?,
        definitions(root, "addon/v1alpha1", &["managedclusteraddons"])?,
    ]
    .concat())
}

/// The rules of a hub's controller and of the account that registers clusters.
pub(super) fn hub_rules(root: &Path) -> Result<String> {
    let mut text = String::new();
    for name in ["clusterrole", "clusterrolebinding", "serviceaccount"] {
        let template = read(root, &format!("manifests/cluster-manager/hub/registration/{name}.yaml"))?;
        text.push_str("---\n");
        text.push_str(&render(&template, false));
    }
    for name in ["cluster_role", "sa", "sa_cluster_role_binding"] {
        let template = read(
            root,
            &format!("deploy/cluster-manager/chart/cluster-manager/templates/bootstrap_{name}.yaml"),
        )?;
        text.push_str("---\n");
        text.push_str(&render(&template, true));
    }
    Ok(text)
}

/// `ClusterClaim`.
pub(super) fn claims_definition(root: &Path) -> Result<String> {
    definitions(root, "manifests/klusterlet/managed", &["clusterclaims"])
}

/// `AppliedManifestWork`.
pub(super) fn works_definition(root: &Path) -> Result<String> {
    definitions(root, "manifests/klusterlet/managed", &["appliedmanifestworks"])
}

/// The rules of Open Cluster Management's own agent on its spoke.
pub(super) fn peer_rules(root: &Path) -> Result<String> {
    let mut text = String::new();
    for name in [
        "managed/klusterlet-registration-clusterrole",
        "managed/klusterlet-registration-clusterrole-addon-management",
        "managed/klusterlet-registration-clusterrolebinding",
        "managed/klusterlet-registration-clusterrolebinding-addon-management",
        "management/klusterlet-registration-serviceaccount",
        "management/klusterlet-registration-role",
        "management/klusterlet-registration-rolebinding",
        "management/klusterlet-role-extension-apiserver",
        "management/klusterlet-registration-rolebinding-extension-apiserver",
    ] {
        text.push_str("---\n");
        text.push_str(&render(
            &read(root, &format!("manifests/klusterlet/{name}.yaml"))?,
            false,
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_in_and_optional_blocks_left_out() {
        let text = "name: {{ .ClusterManagerName }}-x\n{{ if gt (len .Labels) 0 }}\n{{ range $k, $v := .Labels }}\na: b\n{{ end }}\n{{ end }}\nc: d\n{{if .Other}}\ne: f\n{{end}}\n";
        assert_eq!(render(text, false), "name: cluster-manager-x\nc: d\n");
        assert_eq!(
            render("{{- if .Values.x }}\na: {{ .Release.Namespace }}\n{{- end }}\n", true),
            "a: open-cluster-management\n"
        );
    }
}
