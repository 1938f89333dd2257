//! How a cluster comes into being: node by node, with kubeadm, and then the ordinary user.

use std::{fs, fs::File, io::Read, process::Command, time::Duration};

use crate::{
    cache::say,
    command::{self, wait_for},
    error::{Context, Error, Result},
    kubeadm::{self, Secrets},
    lab::{Lab, State},
};

impl Lab {
    pub(crate) fn build_cluster(&self) -> Result<()> {
        let mut random = [0; 43];
        File::open("/dev/urandom")
            .and_then(|mut f| f.read_exact(&mut random))
            .what(|| "read /dev/urandom".to_owned())?;
        let secrets = Secrets::from_random(&random);
        say("node 1: namespaces, containerd, images");
        self.first_start(1)?;
        say("node 1: kubeadm init");
        let configuration = kubeadm::init_configuration(&self.settings, &self.built.version, &self.options, &secrets);
        let skip = "--skip-phases=preflight,addon,show-join-command";
        self.kubeadm(1, &configuration, &["init", skip, "--upload-certs"])?;
        let admin = self.file(1, "/etc/kubernetes/admin.conf")?;
        fs::copy(&admin, self.settings.admin_kubeconfig()).what(|| format!("copy {}", admin.display()))?;
        for number in 2..=self.nodes {
            // etcd takes no further member before the last one has started
            self.wait_ready_of(number - 1, Duration::from_secs(180))?;
            self.join_node(number, &secrets)?;
        }
        let _ = self.secrets.set(secrets);
        say("waiting until all is ready");
        self.wait_ready(Duration::from_secs(180))?;
        let what = "make the ordinary user";
        let mut user = Command::new(&self.built.labtool);
        user.arg("user")
            .arg("--admin")
            .arg(self.settings.admin_kubeconfig())
            .arg("--out")
            .arg(self.settings.user_kubeconfig());
        command::run(&mut user, what, Duration::from_secs(120))?.checked(what)?;
        let state = State {
            nodes: self.nodes,
            options: self.options.clone(),
        };
        let file = self.settings.state.join("lab.json");
        let text = serde_json::to_string(&state).what(|| "write the lab's state".to_owned())?;
        fs::write(&file, text).what(|| format!("write {}", file.display()))
    }

    fn join_node(&self, number: u8, secrets: &Secrets) -> Result<()> {
        say(&format!("node {number}: kubeadm join"));
        self.first_start(number)?;
        let configuration = kubeadm::join_configuration(&self.settings, number, &self.options, secrets);
        self.kubeadm(number, &configuration, &["join", "--skip-phases=preflight"])
    }

    /// Joins one more control-plane node to the cluster, and waits until it is ready. Gives its number.
    ///
    /// # Errors
    /// This process has not made the cluster, or kubeadm fails.
    pub fn join(&mut self) -> Result<u8> {
        let number = self.nodes + 1;
        let Some(secrets) = self.secrets.get().cloned() else {
            return Err(Error::new(
                format!("join node {number}"),
                "only the process that has made the cluster knows its tokens",
            ));
        };
        self.nodes = number;
        self.join_node(number, &secrets)?;
        self.wait_ready(Duration::from_secs(180))?;
        Ok(number)
    }

    fn first_start(&self, number: u8) -> Result<()> {
        self.node(number)?.start(&self.built)?;
        for (path, content) in &self.options.files {
            let to = self.file(number, path)?;
            fs::create_dir_all(to.parent().unwrap_or(&to))
                .and_then(|()| fs::write(&to, content))
                .what(|| format!("write {}", to.display()))?;
        }
        Ok(())
    }

    fn kubeadm(&self, number: u8, configuration: &str, args: &[&str]) -> Result<()> {
        let path = "/etc/kubernetes/kubeadm.yaml";
        let file = self.file(number, path)?;
        fs::write(&file, configuration).what(|| format!("write {}", file.display()))?;
        let program = self.built.kubernetes.join("kubeadm").display().to_string();
        let all = [&[program.as_str()], args, &["--config", path]].concat();
        let what = format!("kubeadm {} on node {number}", args.first().unwrap_or(&""));
        let output = command::run(
            &mut self.node(number)?.command(&self.built, &all)?,
            &what,
            Duration::from_secs(300),
        )?;
        let log = self.node(number)?.directory().join("kubeadm.log");
        fs::write(&log, format!("{}{}", output.stdout, output.stderr)).what(|| format!("write {}", log.display()))?;
        // kubeadm only warns of a field it does not know: the cluster would not be what the caller asked for.
        if let Some(line) = output
            .stderr
            .lines()
            .find(|line| line.contains("strict decoding error"))
        {
            return Err(Error::new(what, line)
                .hint("the extra configuration must be fields of kubeadm's ClusterConfiguration, version v1beta4"));
        }
        output.checked(&what).map(|_| ())
    }

    /// Waits until every Node and every Pod of kube-system is ready, and all static Pods are there.
    ///
    /// # Errors
    /// The deadline has passed, counted for each of the two.
    pub fn wait_ready(&self, deadline: Duration) -> Result<()> {
        self.wait_ready_of(self.nodes, deadline)
    }

    /// As [`Lab::wait_ready`], while only so many nodes are there.
    fn wait_ready_of(&self, nodes: u8, deadline: Duration) -> Result<()> {
        let every = Duration::from_millis(500);
        let nodes = usize::from(nodes);
        wait_for("all Nodes to be Ready", deadline, every, || {
            let template = r#"{range .items[*]}{range .status.conditions[?(@.type=="Ready")]}{.status} {end}{end}"#;
            let o = self.kubectl(&["get", "nodes", "-o", &format!("jsonpath={template}")])?;
            let ready = o.stdout.split_whitespace().filter(|s| *s == "True").count();
            Ok(if ready == nodes {
                Ok(())
            } else {
                Err(format!("{ready} of {nodes} are. {}", o.stderr.trim()))
            })
        })?;
        wait_for("all Pods of kube-system to be Ready", deadline, every, || {
            let template = r#"{range .items[*]}{.metadata.name}={range .status.conditions[?(@.type=="Ready")]}{.status}{end} {end}"#;
            let o = self.kubectl(&[
                "get",
                "pods",
                "-n",
                "kube-system",
                "-o",
                &format!("jsonpath={template}"),
            ])?;
            let pods: Vec<_> = o.stdout.split_whitespace().collect();
            let ready = pods.iter().filter(|p| p.ends_with("=True")).count();
            let done = ready == pods.len() && ready >= 4 * nodes;
            Ok(if done {
                Ok(())
            } else {
                Err(format!(
                    "{} of at least {}: {}",
                    o.stderr.trim(),
                    4 * nodes,
                    pods.join(" ")
                ))
            })
        })
    }
}
