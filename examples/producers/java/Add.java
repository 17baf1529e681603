import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.security.MessageDigest;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Publishes one Change for each file that was added to a store.
 *
 * <pre>
 * mvn -q dependency:copy-dependencies -DoutputDirectory=lib
 * BROKERS=localhost:9092 java -cp 'lib/*' Add.java ACCOUNT STORE SPACE FOLDER ITEM...
 * </pre>
 *
 * Each ITEM is the path of a file below FOLDER, which is also its name in SPACE. Needs JDK 17 or newer.
 */
public class Add {
  /** The number of OP_ADD in Op, part of the id. */
  private static final String OP_ADD = "1";

  private static final DateTimeFormatter TIME =
      DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSS'Z'").withZone(ZoneOffset.UTC);

  public static void main(String[] args) throws Exception {
    String brokers = System.getenv("BROKERS");
    if (args.length < 5 || brokers == null) {
      System.err.println("usage: BROKERS=HOST:PORT java Add.java ACCOUNT STORE SPACE FOLDER ITEM...");
      System.exit(2);
    }
    String topic = System.getenv().getOrDefault("TOPIC", "millrace.changes");
    // Use the client's default partitioner, as all producers do.
    Map<String, Object> config =
        Map.of("bootstrap.servers", brokers, "acks", "all", "enable.idempotence", true);
    try (var producer =
        new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
      for (int i = 4; i < args.length; i++) {
        var record = record(topic, args[0], args[1], args[2], args[i], Path.of(args[3], args[i]));
        producer.send(record).get(); // wait for the acknowledgement
        System.out.println(new String(record.headers().lastHeader("ce_id").value(), StandardCharsets.UTF_8) + " " + args[i]);
      }
    }
  }

  static ProducerRecord<byte[], byte[]> record(
      String topic, String account, String store, String space, String item, Path file) throws Exception {
    FileTime before = Files.getLastModifiedTime(file);
    TreeMap<String, String> digests = digests(file); // sorted by algorithm, as the id requires
    long size = Files.size(file);
    if (!before.equals(Files.getLastModifiedTime(file))) {
      throw new IllegalStateException(file + " was changed meanwhile");
    }
    long millis = Math.floorDiv(before.to(java.util.concurrent.TimeUnit.NANOSECONDS), 1_000_000L);
    String time = TIME.format(Instant.ofEpochMilli(millis));

    List<String> parts = new ArrayList<>(List.of("change", account, store, space, item, OP_ADD, "d"));
    digests.forEach((algorithm, hex) -> parts.addAll(List.of(algorithm, hex)));
    parts.add(Long.toString(millis));
    String id = id(parts);

    var change = new TreeMap<String, String>();
    change.put("id", quote(id));
    change.put("op", quote("OP_ADD"));
    change.put("account", quote(account));
    change.put("store", quote(store));
    change.put("space", quote(space));
    change.put("item", quote(item));
    change.put("size", quote(Long.toString(size)));
    change.put("digests", object(digests));
    change.put("provenance", quote("PROVENANCE_CLAIMED"));
    change.put("time", quote(time));
    change.put("user", quote(System.getProperty("user.name")));
    change.put("agent", quote("Add.java"));
    change.put("origin", quote("ORIGIN_CLIENT"));

    var record = new ProducerRecord<>(topic, bytes(key(account, space, item)), bytes(raw(change)));
    Map.of(
            "ce_specversion", "1.0",
            "ce_id", id,
            "ce_source", "example/java",
            "ce_type", "millrace.v1.Change",
            "ce_time", time,
            "content-type", "application/json")
        .forEach((name, value) -> record.headers().add(name, bytes(value)));
    return record;
  }

  /** Joins parts. Different lists of parts have different keys. */
  static String key(String... parts) {
    var escaped = new ArrayList<String>();
    for (String p : parts) {
      escaped.add(p.replace("%", "%25").replace("/", "%2F"));
    }
    return String.join("/", escaped);
  }

  /** Returns a hash of the parts and their lengths: 128 bits in hex. */
  static String id(List<String> parts) throws Exception {
    var all = new ByteArrayOutputStream();
    for (String part : parts) {
      byte[] data = bytes(part);
      int n = data.length;
      for (; n >= 0x80; n >>>= 7) {
        all.write(n & 0x7f | 0x80);
      }
      all.write(n);
      all.writeBytes(data);
    }
    byte[] sum = MessageDigest.getInstance("SHA-256").digest(all.toByteArray());
    return HexFormat.of().formatHex(sum, 0, 16);
  }

  static TreeMap<String, String> digests(Path file) throws Exception {
    var md5 = MessageDigest.getInstance("MD5");
    var sha256 = MessageDigest.getInstance("SHA-256");
    try (InputStream in = Files.newInputStream(file)) {
      byte[] buffer = new byte[1 << 20];
      for (int n; (n = in.read(buffer)) > 0; ) {
        md5.update(buffer, 0, n);
        sha256.update(buffer, 0, n);
      }
    }
    var digests = new TreeMap<String, String>();
    digests.put("md5", HexFormat.of().formatHex(md5.digest()));
    digests.put("sha256", HexFormat.of().formatHex(sha256.digest()));
    return digests;
  }

  private static byte[] bytes(String s) {
    return s.getBytes(StandardCharsets.UTF_8);
  }

  private static String object(Map<String, String> texts) {
    var quoted = new TreeMap<String, String>();
    texts.forEach((name, value) -> quoted.put(name, quote(value)));
    return raw(quoted);
  }

  private static String raw(Map<String, String> values) {
    var members = new ArrayList<String>();
    values.forEach((name, value) -> members.add(quote(name) + ":" + value));
    return "{" + String.join(",", members) + "}";
  }

  private static String quote(String s) {
    var b = new StringBuilder("\"");
    for (char c : s.toCharArray()) {
      if (c < 0x20 || c == '"' || c == '\\') {
        b.append(String.format("\\u%04x", (int) c));
      } else {
        b.append(c);
      }
    }
    return b.append('"').toString();
  }
}
