use super::*;
use crate::certs_in_secrets::Content;
use crate::last_known_good::draft;
use crate::names::Component;
use crate::node::guard::volume_files::NodeFile;
use crate::node::process::Owner;
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt;

const COMPONENT: Component = Component::KubeScheduler;

fn me() -> Owner {
    Owner {
        user: rustix::process::geteuid().as_raw(),
        group: rustix::process::getegid().as_raw(),
    }
}

fn made(key: &str, flag: &str) -> (Draft, VolumeFiles) {
    let original = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
        "spec": {"containers": [{"name": "kube-scheduler", "command": ["kube-scheduler"]}]}});
    let mut pod = original.clone();
    pod["metadata"]["labels"] = json!({"pod-template-generation": "2", "controller-revision-hash": "abc"});
    pod["spec"]["containers"][0]["command"] = json!(["kube-scheduler", flag]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]);
    let file = |bytes: &[u8], executable| NodeFile {
        content: Content::new(bytes.to_vec()),
        executable,
        owner: me(),
    };
    let volumes = VolumeFiles {
        files: BTreeMap::from([
            ("v/key".into(), file(key.as_bytes(), false)),
            ("v/a/b/hook".into(), file(b"#!", true)),
        ]),
        volumes: BTreeMap::from([("v".to_owned(), me())]),
    };
    (draft(COMPONENT, &pod, &original).unwrap(), volumes)
}

fn kept(files: &ComponentFiles, key: &str, flag: &str) -> io::Result<Kept> {
    let (draft, volumes) = made(key, flag);
    keep(
        prepare(&draft, &volumes, files)?,
        &volumes,
        files,
        "original",
        "now".into(),
    )
}

fn below(directory: &Path) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let mode = entry.metadata().unwrap().mode() & 0o7777;
        found.push((entry.path().display().to_string(), mode));
        if entry.path().is_dir() {
            found.extend(below(&entry.path()));
        }
    }
    found
}

#[test]
fn what_is_kept_is_read_back_and_private() {
    let state = tempfile::tempdir().unwrap();
    let files = ComponentFiles::below(state.path(), COMPONENT);
    files::make_directory(files.directory(), 0o700).unwrap();
    assert_eq!(load(&files).unwrap(), None);
    let first = kept(&files, "one", "--v=1").unwrap();
    assert_eq!(load(&files).unwrap().as_ref(), Some(&first));
    let manifest = first.manifest(&files).unwrap();
    assert!(
        manifest.contains("--v=1") && manifest.contains(&files.kept_files().display().to_string()),
        "{manifest}"
    );
    assert_eq!(first.template.generation, Some(2));
    for (path, mode) in below(state.path()) {
        let expected = if path.ends_with("hook") || Path::new(&path).is_dir() {
            0o700
        } else {
            0o600
        };
        assert_eq!(mode, expected, "{path}");
    }
    assert!(
        !fs::read_to_string(files.kept()).unwrap().contains("\"one\""),
        "no content in the one file"
    );
    // another one takes its place, and nothing of the first stays
    let second = kept(&files, "two", "--v=1").unwrap();
    assert_ne!(second.digest, first.digest, "other files are another fallback");
    assert_eq!(fs::read_dir(files.kept_files()).unwrap().count(), 1);
    assert!(first.manifest(&files).is_err());
    second.manifest(&files).unwrap();
    forget(&files).unwrap();
    assert_eq!(load(&files).unwrap(), None);
    assert!(!files.kept_files().exists());
}

#[test]
fn what_was_touched_is_not_used() {
    let state = tempfile::tempdir().unwrap();
    let files = ComponentFiles::below(state.path(), COMPONENT);
    files::make_directory(files.directory(), 0o700).unwrap();
    let one = kept(&files, "one", "--v=1").unwrap();
    let directory = fs::read_dir(files.kept_files())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    fs::write(directory.join("v/key"), "changed").unwrap();
    assert!(
        one.manifest(&files)
            .unwrap_err()
            .to_string()
            .contains("v/key is damaged")
    );
    // keeping it again repairs it
    kept(&files, "one", "--v=1").unwrap().manifest(&files).unwrap();
    fs::remove_file(directory.join("v/key")).unwrap();
    one.manifest(&files).unwrap_err();
    let text = fs::read_to_string(files.kept()).unwrap().replace("--v=1", "--v=9");
    fs::write(files.kept(), text).unwrap();
    let edited = load(&files).unwrap().unwrap();
    assert!(edited.manifest(&files).unwrap_err().to_string().contains("SHA-256"));
    fs::write(files.kept(), "{").unwrap();
    load(&files).unwrap_err();
}

/// A guard that died anywhere left either the old one, whole, or the new one, whole.
#[test]
fn what_is_left_half_done_is_in_nobodys_way() {
    let state = tempfile::tempdir().unwrap();
    let files = ComponentFiles::below(state.path(), COMPONENT);
    files::make_directory(files.directory(), 0o700).unwrap();
    let one = kept(&files, "one", "--v=1").unwrap();
    // it died while it wrote the files of the second, and another time before the one file
    let (draft, volumes) = made("two", "--v=2");
    let name = prepare(&draft, &volumes, &files).unwrap().directory.unwrap();
    let half = files.kept_files().join(format!(".{name}.new"));
    fs::create_dir(&half).unwrap();
    fs::write(half.join("x"), "half").unwrap();
    assert_eq!(load(&files).unwrap(), Some(one.clone()));
    one.manifest(&files).unwrap();
    fs::create_dir(files.kept_files().join(&name)).unwrap();
    one.manifest(&files).unwrap();
    let two = kept(&files, "two", "--v=2").unwrap();
    two.manifest(&files).unwrap();
    assert_eq!(fs::read_dir(files.kept_files()).unwrap().count(), 1);
}

#[test]
fn when_it_cannot_be_written_the_earlier_one_stays() {
    let state = tempfile::tempdir().unwrap();
    let files = ComponentFiles::below(state.path(), COMPONENT);
    files::make_directory(files.directory(), 0o700).unwrap();
    let one = kept(&files, "one", "--v=1").unwrap();
    // a file where a directory has to be: also root is refused
    let (draft, volumes) = made("two", "--v=2");
    let name = prepare(&draft, &volumes, &files).unwrap().directory.unwrap();
    let mut broken = volumes.clone();
    let file = broken.files[Path::new("v/key")].clone();
    broken.files.insert("v/key/below".into(), file);
    let error = keep(
        prepare(&draft, &volumes, &files).unwrap(),
        &broken,
        &files,
        "o",
        "now".into(),
    )
    .unwrap_err();
    assert!(error.to_string().contains(&name), "{error}");
    assert_eq!(load(&files).unwrap(), Some(one.clone()));
    one.manifest(&files).unwrap();
}
