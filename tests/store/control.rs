use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use serde_json::{Value, json};
use tinyllm::control::{NoMount, Request, Server, call, serve};
use tinyllm::error::{ErrorKind, StoreError};
use tinyllm::progress::unwatched;
use tinyllm::store::Store;

use crate::support::{Bench, Model};

fn start(store: Store) -> (Arc<Store>, Server) {
    let store = Arc::new(store);
    let server = serve(store.clone(), Arc::new(NoMount { store: store.clone() })).unwrap();
    (store, server)
}

#[test]
fn requests_are_answered_until_the_server_stops() {
    let Bench { dir, store } = Bench::new();
    let layout = store.layout().clone();
    let source = Model::small(1).save(&dir.path().join("src"), "a", 1);
    assert_eq!(call(&layout, &Request::Ping, &unwatched).unwrap(), None, "nobody answers");
    let (_store, server) = start(store);
    let mode = std::fs::metadata(layout.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let ask = |request: &Request| call(&layout, request, &unwatched).map(|answer| answer.unwrap());
    assert_eq!(ask(&Request::Ping).unwrap()["pid"], std::process::id());
    let import = Request::Import { source, name: "a/step-1".into(), base_model: None, uid: 1000, gid: 1000 };
    assert_eq!(ask(&import).unwrap()["path"], "runs/a/ckpt/step-000001");
    assert_eq!(ask(&Request::Status).unwrap()["checkpoints"], 2);
    assert_eq!(ask(&Request::Gc).unwrap()["chunks"], 0);
    let verified = ask(&Request::Verify { checkpoint: Some("a/1".into()) }).unwrap();
    assert_eq!(verified["checkpoints"][0]["problems"], json!([]));

    let again = ask(&import).unwrap_err();
    assert!(matches!(again, StoreError::Daemon { kind: ErrorKind::Refused, .. }), "{again}");
    let missing = ask(&Request::Verify { checkpoint: Some("a/2".into()) }).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("run a has step-000001"));
    server.stop().unwrap();
    assert!(!layout.socket().exists());
    assert_eq!(call(&layout, &Request::Ping, &unwatched).unwrap(), None);
}

#[test]
fn a_dead_daemons_socket_is_replaced() {
    let Bench { dir: _dir, store } = Bench::new();
    let layout = store.layout().clone();
    drop(UnixListener::bind(layout.socket()).unwrap());
    assert_eq!(call(&layout, &Request::Ping, &unwatched).unwrap(), None);
    let (_store, server) = start(store);
    assert!(call(&layout, &Request::Ping, &unwatched).unwrap().is_some());
    server.stop().unwrap();
}

#[test]
fn a_store_deep_below_the_root_has_a_socket_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d".repeat(100)).join("e".repeat(100));
    let (store, server) = start(Store::create(&path, 0, 0).unwrap());
    assert!(call(store.layout(), &Request::Ping, &unwatched).unwrap().is_some());
    server.stop().unwrap();
}

/// Sends raw bytes and reads one reply, if one comes.
fn exchange(stream: &UnixStream, line: &[u8]) -> Option<Value> {
    let mut output = stream;
    output.write_all(line).ok()?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).ok()?;
    serde_json::from_str(&reply).ok()
}

#[test]
fn nonsense_is_answered_and_endless_lines_are_cut_off() {
    let Bench { dir: _dir, store } = Bench::new();
    let (store, server) = start(store);
    let stream = UnixStream::connect(store.layout().socket()).unwrap();
    for nonsense in ["nonsense\n", "{}\n", "{\"verb\": \"dance\"}\n", "{\"verb\": \"verify\", \"more\": 1}\n"]
    {
        assert_eq!(exchange(&stream, nonsense.as_bytes()).unwrap()["error"]["kind"], "usage", "{nonsense}");
    }
    assert!(exchange(&stream, b"{\"verb\": \"ping\"}\n").unwrap()["ok"]["pid"].is_number());
    assert_eq!(exchange(&stream, &vec![b'x'; 1 << 20]), None);
    // Idle connections do not keep it from stopping.
    let _idle = UnixStream::connect(store.layout().socket()).unwrap();
    server.stop().unwrap();
}
