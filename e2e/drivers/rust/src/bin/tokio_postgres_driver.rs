//! What a client does, by tokio-postgres with rustls. DRIVER_URL is the database,
//! DRIVER_ADDR where its name leads, DRIVER_CA the authority of the router's certificate.

use std::{env, error::Error, net::IpAddr, time::Duration};

use berth_driver::ready;
use futures_util::{future, stream, SinkExt, StreamExt};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{pem::PemObject, CertificateDer};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};
use tokio_postgres::{config::SslMode, error::SqlState, AsyncMessage, Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

type Res<T> = Result<T, Box<dyn Error>>;

fn tls() -> Res<MakeRustlsConnect> {
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_file_iter(env::var("DRIVER_CA")?)? {
        roots.add(cert?)?;
    }
    Ok(MakeRustlsConnect::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}

async fn connect(url: &str) -> Res<(Client, UnboundedReceiver<String>)> {
    let mut config: Config = url.parse()?;
    let addr = env::var("DRIVER_ADDR")?;
    // The name is verified, and not looked up.
    config.hostaddr(addr.rsplit_once(':').ok_or("no port")?.0.parse::<IpAddr>()?);
    config.ssl_mode(SslMode::Require).connect_timeout(Duration::from_secs(60));
    let (client, mut connection) = config.connect(tls()?).await?;
    let (heard, notifications) = unbounded_channel();
    tokio::spawn(async move {
        let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(message) = messages.next().await {
            let _ = match message {
                Ok(AsyncMessage::Notification(n)) => heard.send(n.payload().to_owned()),
                Ok(_) => Ok(()),
                Err(e) => return drop(heard.send(code(&e).to_owned())),
            };
        }
    });
    Ok((client, notifications))
}

fn code(e: &tokio_postgres::Error) -> &str {
    e.code().map_or("none", SqlState::code)
}

#[tokio::main]
async fn main() -> Res<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = env::var("DRIVER_URL")?;
    let (client, mut notifications) = connect(&url).await?;
    println!("ok: connect verify-full");

    let statement = client.prepare("SELECT $1::int + 1").await?;
    for i in 0..3 {
        assert_eq!(client.query_one(&statement, &[&i]).await?.get::<_, i32>(0), i + 1);
    }
    println!("ok: prepared statements");

    client.batch_execute("CREATE TEMP TABLE rust_rows (n int PRIMARY KEY, t text)").await?;
    let lines: String = (0..10_000).map(|i| format!("{i}\trow {i}\n")).collect();
    let mut sink = std::pin::pin!(client.copy_in("COPY rust_rows FROM STDIN").await?);
    sink.send(bytes::Bytes::from(lines.clone())).await?;
    assert_eq!(sink.finish().await?, 10_000);
    let mut back = Vec::new();
    let out = client.copy_out("COPY (SELECT * FROM rust_rows ORDER BY n) TO STDOUT").await?;
    out.for_each(|part| {
        back.extend_from_slice(&part.expect("a part of the copy"));
        future::ready(())
    })
    .await;
    assert_eq!(back, lines.into_bytes());
    println!("ok: copy");

    client.batch_execute("LISTEN rust_channel").await?;
    let (other, _) = connect(&url).await?;
    other.batch_execute("SELECT pg_notify('rust_channel', 'hello')").await?;
    let heard = tokio::time::timeout(Duration::from_secs(60), notifications.recv()).await?;
    assert_eq!(heard.as_deref(), Some("hello"));
    println!("ok: listen, notify");

    let token = client.cancel_token();
    let canceller = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await; // until it has begun
            if let Err(e) = token.cancel_query(tls().expect("TLS")).await {
                eprintln!("cancel: {e}");
            }
        }
    });
    let refused = client.batch_execute("SELECT pg_sleep(120)").await;
    canceller.abort();
    assert_eq!(refused.expect_err("it was not cancelled").code(), Some(&SqlState::QUERY_CANCELED));
    client.batch_execute("SELECT 1").await?;
    println!("ok: cancel");
    drop((client, other));

    ready("sleep")?;
    let (held, mut end) = connect(&url).await?;
    assert_eq!(held.query_one("SELECT 6 * 7", &[]).await?.get::<_, i32>(0), 42);
    println!("ok: wake");
    let fresh = ready("rotation")?;
    assert_eq!(end.recv().await.as_deref(), Some("57P01"));
    assert!(held.batch_execute("SELECT 1").await.expect_err("it goes on").is_closed());
    let refused = connect(&url).await.err().ok_or("the password of before is good")?;
    assert_eq!(refused.downcast_ref().map(code), Some("28P01"));
    let (again, _) = connect(&fresh).await?;
    assert_eq!(again.query_one("SELECT 6 * 7", &[]).await?.get::<_, i32>(0), 42);
    println!("ok: rotation");
    Ok(())
}
