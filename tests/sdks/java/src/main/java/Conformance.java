import java.io.ByteArrayInputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Runs Microsoft's Service Bus SDK for Java, unmodified, against localbus: one JSON line per case, exit code 0 if and
 * only if every case is ok. Arguments name the cases to run; none means all.
 *
 * <pre>
 *   LOCALBUS     connection string (UseDevelopmentEmulator=true)
 *   LOCALBUS_CA  the CA file of localbus, for the administration client
 *   LOCALBUS_INTEROP  prefix of two queues that the caller made: what waits in "-in" is sent on to "-out" (optional)
 *   CONCURRENCY  cases at a time (4)
 * </pre>
 */
public final class Conformance {
    private static final int CASE_LIMIT_SECONDS = 30;

    /** One behaviour to check; it fails by throwing. */
    interface Case {
        void run(Bench bench) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        if (System.getenv("LOCALBUS") == null) {
            System.err.println("LOCALBUS is not set");
            System.exit(2);
        }
        trust(Path.of(System.getenv("LOCALBUS_CA")));
        Map<String, Case> cases = new LinkedHashMap<>();
        QueueCases.addTo(cases);
        SessionCases.addTo(cases);
        TopicCases.addTo(cases);
        FidelityCases.addTo(cases);
        AdministrationCases.addTo(cases);
        List<String> chosen = args.length > 0 ? List.of(args) : List.copyOf(cases.keySet());
        for (String name : chosen) {
            if (!cases.containsKey(name)) {
                System.err.println("unknown case: " + name);
                System.exit(2);
            }
        }
        int lanes = Integer.parseInt(System.getenv().getOrDefault("CONCURRENCY", "4"));
        ExecutorService pool = Executors.newFixedThreadPool(lanes);
        List<Future<Boolean>> verdicts = new ArrayList<>();
        for (String name : chosen) {
            verdicts.add(pool.submit(() -> verdict(name, cases.get(name))));
        }
        boolean ok = true;
        for (Future<Boolean> verdict : verdicts) {
            ok &= verdict.get();
        }
        System.out.flush();
        Runtime.getRuntime().halt(ok ? 0 : 1); // the SDK's threads of a case that hangs must not keep us
    }

    private static boolean verdict(String name, Case body) {
        long started = System.nanoTime();
        ExecutorService own = Executors.newSingleThreadExecutor();
        String problem = null;
        try (Bench bench = new Bench(name)) {
            Future<?> future = own.submit(() -> {
                body.run(bench);
                return null;
            });
            future.get(CASE_LIMIT_SECONDS, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            problem = "no end within " + CASE_LIMIT_SECONDS + " s";
        } catch (ExecutionException e) {
            problem = describe(e.getCause());
        } catch (Exception | Error e) {
            problem = describe(e);
        } finally {
            own.shutdownNow();
        }
        String detail = problem != null ? problem : (System.nanoTime() - started) / 1_000_000 + " ms";
        String line = "{\"case\": " + quote(name) + ", \"ok\": " + (problem == null) + ", \"detail\": " + quote(detail) + "}";
        synchronized (System.out) {
            System.out.println(line);
        }
        return problem == null;
    }

    private static String describe(Throwable error) {
        StringBuilder text = new StringBuilder(error.getClass().getSimpleName() + ": " + error.getMessage());
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            text.append(" <- ").append(cause.getClass().getSimpleName()).append(": ").append(cause.getMessage());
        }
        for (StackTraceElement frame : error.getStackTrace()) {
            if (frame.getClassName().endsWith("Cases")) {
                text.append(" (").append(frame.getFileName()).append(':').append(frame.getLineNumber()).append(')');
                break;
            }
        }
        return text.toString();
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }

    /** Makes the JVM trust the CA of localbus, and nothing else. */
    private static void trust(Path pem) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        int count = 0;
        for (Certificate certificate : CertificateFactory.getInstance("X.509")
                .generateCertificates(new ByteArrayInputStream(Files.readAllBytes(pem)))) {
            store.setCertificateEntry("localbus-" + count++, certificate);
        }
        Path file = Files.createTempFile("localbus-trust", ".p12");
        file.toFile().deleteOnExit();
        try (OutputStream out = Files.newOutputStream(file)) {
            store.store(out, "localbus".toCharArray());
        }
        System.setProperty("javax.net.ssl.trustStore", file.toString());
        System.setProperty("javax.net.ssl.trustStorePassword", "localbus");
        System.setProperty("javax.net.ssl.trustStoreType", "PKCS12");
    }

    private Conformance() {
    }
}
