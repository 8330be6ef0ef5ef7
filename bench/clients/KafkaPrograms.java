// The programs of bench/streams_workloads.py by Kafka Streams: started as a single source file. What is to be run, and
// where, comes from the environment.
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

public class KafkaPrograms {
  static final Serde<String> TEXT = Serdes.String();
  static final ObjectMapper MAPPER =
      new ObjectMapper().configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);

  public static class Order {
    public double amount;
    public long at;
  }

  public static class User {
    public String name;
    public double rate;
  }

  public static class Total {
    public double total;
    public long n;

    Total add(Order order) {
      total += order.amount;
      n += 1;
      return this;
    }
  }

  public record Named(String user, double total, long n) {}

  public record Rich(String user, double amount, long at, String name, Double rate) {}

  public record Seen(String user, long seen) {}

  static <T> Serde<T> json(Class<T> type) {
    return Serdes.serdeFrom(
        (topic, value) -> {
          try {
            return value == null ? null : MAPPER.writeValueAsBytes(value);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        },
        (topic, data) -> {
          try {
            return data == null ? null : MAPPER.readValue(data, type);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        });
  }

  static KStream<String, Order> orders(StreamsBuilder builder) {
    return builder.stream(System.getenv("SOURCE"), Consumed.with(TEXT, json(Order.class)));
  }

  static void words(StreamsBuilder builder, String target) {
    builder
        .stream(System.getenv("SOURCE"), Consumed.with(Serdes.ByteArray(), TEXT))
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word, Grouped.with("by-word", TEXT, TEXT))
        .count(Materialized.with(TEXT, Serdes.Long()))
        .toStream()
        .mapValues(count -> Long.toString(count))
        .to(target, Produced.with(TEXT, TEXT));
  }

  static void windows(StreamsBuilder builder, String target) {
    orders(builder)
        .groupByKey(Grouped.with(TEXT, json(Order.class)))
        .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofSeconds(10)))
        .aggregate(
            Total::new,
            (user, order, total) -> total.add(order),
            Materialized.with(TEXT, json(Total.class)))
        .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
        .toStream((window, total) -> window.key())
        .mapValues((user, total) -> new Named(user, total.total, total.n))
        .to(target, Produced.with(TEXT, json(Named.class)));
  }

  static void join(StreamsBuilder builder, String target) {
    var users = builder.table(System.getenv("TABLE"), Consumed.with(TEXT, json(User.class)));
    orders(builder)
        .leftJoin(
            users,
            (key, order, user) ->
                new Rich(
                    key,
                    order.amount,
                    order.at,
                    user == null ? null : user.name,
                    user == null ? null : user.rate),
            Joined.with(TEXT, json(Order.class), json(User.class)))
        .to(target, Produced.with(TEXT, json(Rich.class)));
  }

  static class Count implements FixedKeyProcessor<String, Order, Seen> {
    private FixedKeyProcessorContext<String, Seen> context;
    private KeyValueStore<String, Long> store;

    @Override
    public void init(FixedKeyProcessorContext<String, Seen> given) {
      context = given;
      store = given.getStateStore("seen");
    }

    @Override
    public void process(FixedKeyRecord<String, Order> order) {
      Long before = store.get(order.key());
      long seen = before == null ? 1 : before + 1;
      store.put(order.key(), seen);
      context.forward(order.withValue(new Seen(order.key(), seen)));
    }
  }

  static void function(StreamsBuilder builder, String target) {
    builder.addStateStore(
        Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("seen"), TEXT, Serdes.Long()));
    orders(builder)
        .processValues(Count::new, "seen")
        .to(target, Produced.with(TEXT, json(Seen.class)));
  }

  static void keys(StreamsBuilder builder, String target) {
    orders(builder)
        .groupByKey(Grouped.with(TEXT, json(Order.class)))
        .aggregate(
            Total::new,
            (user, order, total) -> total.add(order),
            Materialized.with(TEXT, json(Total.class)))
        .toStream()
        .mapValues((user, total) -> new Named(user, total.total, total.n))
        .to(target, Produced.with(TEXT, json(Named.class)));
  }

  public static void main(String[] given) {
    StreamsBuilder builder = new StreamsBuilder();
    String target = System.getenv("TARGET");
    switch (System.getenv("PROGRAM")) {
      case "words" -> words(builder, target);
      case "windows" -> windows(builder, target);
      case "join" -> join(builder, target);
      case "function" -> function(builder, target);
      case "keys" -> keys(builder, target);
      default -> throw new IllegalArgumentException(System.getenv("PROGRAM"));
    }
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "bench-" + System.getenv("SOURCE"));
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, System.getenv("BOOTSTRAP"));
    settings.put(StreamsConfig.STATE_DIR_CONFIG, System.getenv("STATE"));
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, System.getenv("THREADS"));
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
    settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    if (System.getenv("TUNED").equals("1")) {
      settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
      settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 256L << 20);
      settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 10_000);
      settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 512 << 10);
      settings.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
    }
    KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }
}
