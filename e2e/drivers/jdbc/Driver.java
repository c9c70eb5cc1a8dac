import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;

/** What a client does, by JDBC. The name is looked up in the file of jdk.net.hosts.file. */
public class Driver {
    public static void main(String[] args) throws Exception {
        for (String mode : new String[] {"require", "verify-full"}) {
            try (Connection c = connect(mode); Statement s = c.createStatement(); var r = s.executeQuery("SELECT 6 * 7")) {
                r.next();
                check(r.getInt(1) == 42);
            }
            ok("connect " + mode);
        }
        try (Connection c = connect("verify-full")) {
            prepared(c);
            copy(c);
            listen(c);
            cancel(c);
        }
        middle();
    }

    static Connection connect(String mode) throws Exception {
        return connect(mode, System.getenv("DRIVER_URL"));
    }

    static Connection connect(String mode, String url) throws Exception {
        URI uri = new URI(url);
        String[] user = uri.getRawUserInfo().split(":", 2);
        Properties p = new Properties();
        p.setProperty("user", URLDecoder.decode(user[0], StandardCharsets.UTF_8));
        p.setProperty("password", URLDecoder.decode(user[1], StandardCharsets.UTF_8));
        p.setProperty("sslmode", mode);
        if (!mode.equals("require")) p.setProperty("sslrootcert", System.getenv("DRIVER_CA"));
        p.setProperty("connectTimeout", "60");
        p.setProperty("prepareThreshold", "1");
        return DriverManager.getConnection("jdbc:postgresql://" + uri.getHost() + ":" + uri.getPort() + uri.getPath(), p);
    }

    static void prepared(Connection c) throws SQLException {
        try (var s = c.prepareStatement("SELECT ?::int + 1")) {
            for (int i = 0; i < 3; i++) {
                s.setInt(1, i);
                try (var r = s.executeQuery()) {
                    r.next();
                    check(r.getInt(1) == i + 1);
                }
            }
        }
        ok("prepared statements");
    }

    static void copy(Connection c) throws Exception {
        var lines = new StringBuilder();
        for (int i = 0; i < 10_000; i++) lines.append(i).append("\trow ").append(i).append('\n');
        try (var s = c.createStatement()) {
            s.execute("CREATE TEMP TABLE jdbc_rows (n int PRIMARY KEY, t text)");
        }
        var api = c.unwrap(PGConnection.class).getCopyAPI();
        check(api.copyIn("COPY jdbc_rows FROM STDIN", new StringReader(lines.toString())) == 10_000);
        var back = new StringWriter();
        api.copyOut("COPY (SELECT * FROM jdbc_rows ORDER BY n) TO STDOUT", back);
        check(back.toString().contentEquals(lines));
        ok("copy");
    }

    static void listen(Connection c) throws Exception {
        try (var s = c.createStatement(); Connection other = connect("verify-full"); var t = other.createStatement()) {
            s.execute("LISTEN jdbc_channel");
            t.execute("SELECT pg_notify('jdbc_channel', 'hello')");
            PGNotification[] heard = c.unwrap(PGConnection.class).getNotifications(60_000);
            check(heard.length == 1 && heard[0].getParameter().equals("hello"));
        }
        ok("listen, notify");
    }

    static void cancel(Connection c) throws Exception {
        var timer = Executors.newSingleThreadScheduledExecutor();
        try (var s = c.createStatement()) {
            timer.scheduleWithFixedDelay(() -> {
                try {
                    s.cancel(); // nothing until the statement has begun
                } catch (SQLException e) {
                    e.printStackTrace();
                }
            }, 200, 200, TimeUnit.MILLISECONDS);
            s.execute("SELECT pg_sleep(120)");
            throw new AssertionError("it was not cancelled");
        } catch (SQLException e) {
            check("57014".equals(e.getSQLState()));
        } finally {
            timer.shutdownNow();
            timer.awaitTermination(10, TimeUnit.SECONDS);
        }
        try (var s = c.createStatement()) {
            s.execute("SELECT 1");
        }
        ok("cancel");
    }

    /** What happens to the database in the middle: see the type driver in drivers_test.go. */
    static void middle() throws Exception {
        var answers = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready: sleep");
        answers.readLine();
        String fresh;
        try (Connection c = connect("verify-full"); var s = c.createStatement()) {
            s.execute("SELECT 6 * 7");
            ok("wake");
            System.out.println("ready: rotation");
            fresh = answers.readLine();
            check(state(() -> s.execute("SELECT 1")).equals("57P01"));
        }
        check(state(() -> connect("verify-full")).equals("28P01"));
        try (Connection c = connect("verify-full", fresh); var s = c.createStatement()) {
            s.execute("SELECT 6 * 7");
        }
        ok("rotation");
    }

    /** The SQLSTATE with which something is refused. */
    static String state(Callable<?> refused) throws Exception {
        try {
            refused.call();
        } catch (SQLException e) {
            return e.getSQLState();
        }
        return "none";
    }

    static void check(boolean right) {
        if (!right) throw new AssertionError();
    }

    static void ok(String step) {
        System.out.println("ok: " + step);
    }
}
