//! What a client does, by sqlx with rustls. DRIVER_URL is the database, DRIVER_CA the
//! authority of the router's certificate. sqlx takes no address beside a name: the name
//! is looked up, in the file of NSS_WRAPPER_HOSTS.

use std::{env, error::Error, str::FromStr, time::Duration};

use berth_driver::ready;
use futures_util::TryStreamExt;
use sqlx::{
    postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions, PgSslMode},
    query, query_scalar, raw_sql, Connection, PgPool,
};

type Res<T> = Result<T, Box<dyn Error>>;

fn options(url: &str) -> Res<PgConnectOptions> {
    Ok(PgConnectOptions::from_str(url)?.ssl_mode(PgSslMode::VerifyFull).ssl_root_cert(env::var("DRIVER_CA")?))
}

async fn pool(url: &str) -> Res<PgPool> {
    Ok(PgPoolOptions::new().max_connections(4).acquire_timeout(Duration::from_secs(60)).connect_with(options(url)?).await?)
}

fn code(e: &sqlx::Error) -> Option<String> {
    e.as_database_error()?.code().map(Into::into)
}

#[tokio::main]
async fn main() -> Res<()> {
    let url = env::var("DRIVER_URL")?;
    let unverified = options(&url)?.ssl_mode(PgSslMode::Require);
    PgConnection::connect_with(&unverified).await?.close().await?;
    println!("ok: connect require");
    let db = pool(&url).await?;
    println!("ok: connect verify-full");

    let mut conn = db.acquire().await?;
    for i in 0..3 {
        // Prepared at the first time, and kept.
        assert_eq!(query_scalar::<_, i32>("SELECT $1::int + 1").bind(i).fetch_one(&mut *conn).await?, i + 1);
    }
    println!("ok: prepared statements");

    query("CREATE TEMP TABLE sqlx_rows (n int PRIMARY KEY, t text)").execute(&mut *conn).await?;
    let lines: String = (0..10_000).map(|i| format!("{i}\trow {i}\n")).collect();
    let mut sink = conn.copy_in_raw("COPY sqlx_rows FROM STDIN").await?;
    sink.send(lines.as_bytes()).await?;
    assert_eq!(sink.finish().await?, 10_000);
    let out = conn.copy_out_raw("COPY (SELECT * FROM sqlx_rows ORDER BY n) TO STDOUT").await?;
    let parts: Vec<_> = out.try_collect().await?;
    assert_eq!(parts.concat(), lines.into_bytes());
    println!("ok: copy");

    let mut listener = PgListener::connect_with(&db).await?;
    listener.listen("sqlx_channel").await?;
    query("SELECT pg_notify('sqlx_channel', 'hello')").execute(&db).await?;
    let heard = tokio::time::timeout(Duration::from_secs(60), listener.recv()).await??;
    assert_eq!(heard.payload(), "hello");
    println!("ok: listen, notify");

    // sqlx has no call for a cancel request: applications ask the server.
    let pid: i32 = query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *conn).await?;
    let other = db.clone();
    let canceller = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await; // until it has begun
            if let Err(e) = query("SELECT pg_cancel_backend($1)").bind(pid).execute(&other).await {
                eprintln!("cancel: {e}");
            }
        }
    });
    let refused = query("SELECT pg_sleep(120)").execute(&mut *conn).await;
    canceller.abort();
    assert_eq!(code(&refused.expect_err("it was not cancelled")).as_deref(), Some("57014"));
    println!("ok: cancel");
    drop((listener, conn));
    db.close().await;

    ready("sleep")?;
    let mut held = PgConnection::connect_with(&options(&url)?).await?;
    assert_eq!(query_scalar::<_, i32>("SELECT 6 * 7").fetch_one(&mut held).await?, 42);
    println!("ok: wake");
    let fresh = ready("rotation")?;
    let cut = raw_sql("SELECT 1").execute(&mut held).await.expect_err("it goes on");
    assert_eq!(code(&cut).as_deref(), Some("57P01"));
    let refused = PgConnection::connect_with(&options(&url)?).await.expect_err("the password of before is good");
    assert_eq!(code(&refused).as_deref(), Some("28P01"));
    let again = pool(&fresh).await?;
    assert_eq!(query_scalar::<_, i32>("SELECT 6 * 7").fetch_one(&again).await?, 42);
    again.close().await;
    println!("ok: rotation");
    Ok(())
}
