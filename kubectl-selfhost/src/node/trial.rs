//! A trial of the hand-over of a port, with listeners of our own: it finds every obstacle there is (kernel, capabilities,
//! seccomp, Yama, other security modules) without knowing their names.

use super::await_port::describe;
use super::ports;
use super::steering::{Listener, Steering};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Runs the trial: a child process listens as a static Pod's process does, is made to share its port, and is steered.
///
/// # Errors
/// Why the port of another process cannot be shared and steered here, in words.
pub fn run() -> Result<(), String> {
    // the link leads to this executable also where the process has changed its root directory
    let mut child = Command::new("/proc/self/exe")
        .args(["node", "trial-listener"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("the listener of the trial cannot be started: {error}"))?;
    let result = attempt(&mut child);
    // the child ends when its input closes; a stubborn one is killed
    drop(child.stdin.take());
    let _ = child.kill();
    let _ = child.wait();
    result
}

fn attempt(child: &mut Child) -> Result<(), String> {
    let output = child.stdout.take().ok_or("the listener of the trial has no output")?;
    let mut line = String::new();
    BufReader::new(output)
        .read_line(&mut line)
        .map_err(|error| format!("the listener of the trial says nothing: {error}"))?;
    let port: u16 = line
        .trim()
        .parse()
        .map_err(|_| "the listener of the trial did not start".to_owned())?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    ports::share(child.id(), port).map_err(|error| describe(&error))?;
    let newest =
        listen(address, Protocol::TCP, true).map_err(|error| format!("the shared port cannot be bound: {error}"))?;
    let newest_answers = std::thread::spawn(move || answer(&newest, b'n', Some(Duration::from_secs(10))));
    let outcome = (|| {
        ports::steer(port, |_| Steering::Hold { own: None }).map_err(|error| describe(&error))?;
        for _ in 0..20 {
            expect(
                address,
                0,
                b'o',
                "an ordinary connection did not meet the oldest listener",
            )?;
        }
        expect(
            address,
            Listener::Newest.type_of_service(),
            b'n',
            "a probe did not meet the newest listener",
        )?;
        ports::steer(port, |_| Steering::Switch).map_err(|error| describe(&error))?;
        for _ in 0..20 {
            expect(
                address,
                0,
                b'n',
                "after the switch a connection did not meet the newest listener",
            )?;
        }
        expect(
            address,
            Listener::Oldest.type_of_service(),
            b'o',
            "after the switch a probe did not meet the oldest listener",
        )?;
        Ok(())
    })();
    // ask the thread to end; it also ends by itself
    let _ = ask(address, 0, Some(b"q"));
    drop(newest_answers);
    outcome
}

fn expect(address: SocketAddr, tos: u8, who: u8, otherwise: &str) -> Result<(), String> {
    match ask(address, tos, None) {
        Ok(answer) if answer == who => Ok(()),
        Ok(_) => Err(otherwise.to_owned()),
        Err(error) => Err(format!("a connection of the trial failed: {error}")),
    }
}

fn ask(address: SocketAddr, tos: u8, say: Option<&[u8]>) -> io::Result<u8> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tos_v4(u32::from(tos))?;
    socket.connect_timeout(&address.into(), Duration::from_secs(3))?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    stream.write_all(say.unwrap_or(b"a"))?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    Ok(answer[0])
}

fn listen(address: SocketAddr, protocol: Protocol, sharing: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(sharing)?;
    socket.bind(&address.into())?;
    socket.listen(16)?;
    Ok(socket)
}

/// Answers each connection with one byte, until one says `q`, or nobody has come for so long.
fn answer(listener: &Socket, who: u8, patience: Option<Duration>) {
    let _ = listener.set_read_timeout(patience);
    while let Ok((connection, _)) = listener.accept() {
        let mut connection = TcpStream::from(connection);
        let _ = connection.set_read_timeout(Some(Duration::from_secs(3)));
        let mut said = [0];
        let _ = connection.read(&mut said);
        let _ = connection.write_all(&[who]);
        if said[0] == b'q' {
            return;
        }
    }
}

/// The child's side: listens as Go does (MPTCP where the kernel has it, not sharing), says where, ends with its input.
///
/// # Errors
/// When no port of the loopback address can be listened on.
pub fn listener(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = listen(any, Protocol::MPTCP, false).or_else(|_| listen(any, Protocol::TCP, false))?;
    let port = socket
        .local_addr()?
        .as_socket()
        .map(|address| address.port())
        .unwrap_or_default();
    std::thread::spawn(move || answer(&socket, b'o', None));
    writeln!(output, "{port}")?;
    output.flush()?;
    let mut rest = Vec::new();
    input.take(1024).read_to_end(&mut rest)?;
    Ok(())
}
