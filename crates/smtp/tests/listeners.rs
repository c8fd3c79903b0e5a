//! Listeners of one server that differ, clients that differ by network, and clients behind a proxy.
#![cfg(feature = "tokio")]

use std::net::SocketAddr;
use std::time::Duration;

use posthaste_smtp::driver::{
    ByNetwork, ConnectionRefusal, Handler, IncomingBody, ListenerSettings, Peer, Proxies, RunningServer, Server,
    Session, network,
};
use posthaste_smtp::server::Config;
use posthaste_smtp::{Envelope, Limits, MessageOutcome, Protocol, RcptTo, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Far longer than any step takes unless it hangs.
const LONG: Duration = Duration::from_secs(60);

/// Reports clients turned away, and tells each client its listener, or the size limit if asked.
struct Here(mpsc::UnboundedSender<(usize, ConnectionRefusal)>);

impl Handler for Here {
    type State = ();
    type Transaction = ();

    async fn hello(&self, session: &mut Session) -> Result<(), Reply> {
        if session.helo.as_deref() == Some("size.example") {
            return Ok(());
        }
        let ip = session.peer.ip().map_or("nobody".to_owned(), |ip| ip.to_string());
        Err(Reply::new(550, "5.7.1", format!("{ip} at {}", session.listener)))
    }
    async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
        Ok(())
    }
    async fn message(&self, _: &mut Session, _: (), _: Envelope, _: &mut IncomingBody<'_>) -> MessageOutcome {
        MessageOutcome::accepted("kept")
    }
    fn turned_away(&self, listener: usize, _: &Peer, why: &ConnectionRefusal) {
        self.0.send((listener, why.clone())).unwrap();
    }
}

fn config(bytes: u64) -> Config {
    Config { limits: Limits { message_bytes: bytes, ..Limits::default() }, ..Config::new("mx.example.org") }
}

/// All replies of the server until it closes the connection.
async fn dialogue(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    // A client that sends more after it was turned away may be reset.
    let _ = timeout(LONG, stream.read_to_end(&mut heard)).await.expect("closed in time");
    String::from_utf8(heard).unwrap()
}

async fn start(
    settings: [ListenerSettings; 3],
) -> (RunningServer, mpsc::UnboundedReceiver<(usize, ConnectionRefusal)>) {
    let (sender, refusals) = mpsc::unbounded_channel();
    let builder = settings
        .into_iter()
        .fold(Server::builder(), |builder, settings| builder.settings(settings).listen("127.0.0.1:0"));
    (builder.start(Here(sender)).await.unwrap(), refusals)
}

#[tokio::test]
async fn each_listener_and_each_network_has_its_settings() {
    let networks = vec![(network("127.0.0.0/8").unwrap(), config(3000)), (network("10.0.0.0/8").unwrap(), config(9))];
    let by_network = ByNetwork::new(config(2000), networks);
    let lmtp = Config { protocol: Protocol::Lmtp, ..config(4000) };
    let all = [config(1000).into(), ListenerSettings { configs: by_network, ..config(0).into() }, lmtp.into()];
    let (server, _refusals) = start(all).await;
    let size = |address, hello: &'static str| async move {
        let heard = dialogue(address, &format!("{hello} size.example\r\nQUIT\r\n")).await;
        let size = heard.lines().find_map(|line| line.split_once("SIZE ")).expect("a size").1;
        size.parse::<u64>().unwrap()
    };
    let at = server.local_addrs().to_vec();
    assert_eq!(size(at[0], "EHLO").await, 1000);
    assert_eq!(size(at[1], "EHLO").await, 3000);
    assert_eq!(size(at[2], "LHLO").await, 4000);
    // A listener keeps its protocol, whatever a later configuration says.
    server.reconfigure_each([1, 2, 3].map(|bytes| config(bytes).into()).to_vec()).unwrap();
    assert_eq!(size(at[1], "EHLO").await, 2);
    assert_eq!(size(at[2], "LHLO").await, 3);
    server.reconfigure(config(7)).unwrap();
    assert_eq!(size(at[0], "EHLO").await, 7);
    assert_eq!(size(at[2], "LHLO").await, 7);
}

#[tokio::test]
async fn a_client_that_is_passed_on_has_its_own_address_and_settings() {
    let networks = |texts: &[&str]| texts.iter().map(|text| network(text).unwrap()).collect::<Vec<_>>();
    let mut behind_a_proxy = ListenerSettings::from(config(1000));
    behind_a_proxy.rules.proxies = Some(Proxies::new(networks(&["127.0.0.1"])));
    behind_a_proxy.rules.allow = Some(networks(&["192.0.2.0/24"]));
    let mut other_proxies = behind_a_proxy.clone();
    other_proxies.rules.proxies = Some(Proxies::new(networks(&["198.51.100.1"])));
    let (server, mut refusals) = start([config(1).into(), behind_a_proxy, other_proxies]).await;
    let at = server.local_addrs().to_vec();
    let header = "PROXY TCP4 192.0.2.7 127.0.0.1 4711 25\r\n";
    let heard = dialogue(at[1], &format!("{header}EHLO client.example\r\nQUIT\r\n")).await;
    assert!(heard.starts_with("220 ") && heard.contains("550 5.7.1 192.0.2.7 at 1\r\n"), "{heard}");
    let heard = dialogue(at[1], "PROXY TCP4 203.0.113.9 127.0.0.1 4711 25\r\n").await;
    assert_eq!(heard, "554 5.7.1 Clients of your address may not connect here\r\n");
    assert_eq!(refusals.recv().await, Some((1, ConnectionRefusal::NotAllowed)));
    assert_eq!(dialogue(at[1], "EHLO client.example\r\n").await, "");
    assert!(matches!(refusals.recv().await, Some((1, ConnectionRefusal::Proxy(_)))));
    assert_eq!(dialogue(at[2], header).await, "");
    assert_eq!(refusals.recv().await, Some((2, ConnectionRefusal::NotAProxy)));
    // Elsewhere such a line is a command that does not exist.
    let heard = dialogue(at[0], &format!("{header}QUIT\r\n")).await;
    assert!(heard.contains("\r\n500 5.5.1 "), "{heard}");
}
