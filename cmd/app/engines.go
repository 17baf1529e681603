package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/deadletter"
)

// kafkaConfig converts the settings to a client.Config, and resolves secrets.
func kafkaConfig(ctx context.Context, cfg *config.Config, log *slog.Logger) (client.Config, error) {
	k := client.Config{
		Brokers: cfg.Kafka.Brokers, ClientID: "millrace", Prefix: cfg.Kafka.TopicPrefix, Drain: cfg.Roles.Drain, Log: log,
		ServerSide: cfg.Kafka.GroupProtocol == "consumer", Instance: cfg.Kafka.Instance,
		SessionTimeout: cfg.Kafka.SessionTimeout, NoTrim: cfg.Trim.Schedule.Off(),
	}
	for _, n := range cfg.Ingest.Notifications {
		k.Foreign = append(k.Foreign, n.Topic)
	}
	for _, l := range cfg.Delay.Lanes {
		k.Lanes = append(k.Lanes, client.Lane{Name: l.Name, Delay: l.Delay})
	}
	var err error
	if k.TLS, err = tlsConfig(cfg.Kafka.TLS); err != nil {
		return k, fmt.Errorf("kafka.tls: %w", err)
	}
	if s := cfg.Kafka.SASL; s.Mechanism != "" {
		password, err := s.Password.Resolve(ctx)
		if err != nil {
			return k, fmt.Errorf("kafka.sasl.password: %w", err)
		}
		k.SASL = &client.SASL{Mechanism: s.Mechanism, User: s.User, Password: password}
	}
	return k, nil
}

func clickhouseConfig(ctx context.Context, cfg *config.Config) (clickhouse.Config, error) {
	c := cfg.ClickHouse
	password, err := c.Password.Resolve(ctx)
	if err != nil {
		return clickhouse.Config{}, fmt.Errorf("clickhouse.password: %w", err)
	}
	reader, err := c.Reader.Password.Resolve(ctx)
	if err != nil {
		return clickhouse.Config{}, fmt.Errorf("clickhouse.reader.password: %w", err)
	}
	t, err := tlsConfig(c.TLS)
	if err != nil {
		return clickhouse.Config{}, fmt.Errorf("clickhouse.tls: %w", err)
	}
	return clickhouse.Config{
		Addresses: c.Addresses, Database: c.Database, User: c.User, Password: password, TLS: t,
		Reader: clickhouse.Login{User: c.Reader.User, Password: reader}, AllowOlder: c.AllowOlder,
	}, nil
}

// withReaderUser returns cfg with clickhouse.reader as the user, if there is one: commands that
// only read then need no other.
func withReaderUser(cfg *config.Config) *config.Config {
	if cfg.ClickHouse.Reader.User == "" {
		return cfg
	}
	c := *cfg
	c.ClickHouse.User, c.ClickHouse.Password = c.ClickHouse.Reader.User, c.ClickHouse.Reader.Password
	return &c
}

func tlsConfig(c config.TLS) (*tls.Config, error) {
	if !c.Enabled {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("read the CA: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("the CA file holds no certificate in PEM form")
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("read the client's certificate: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// OpenDB opens the ClickHouse database for commands that only read, as clickhouse.reader if there
// is one, and checks its tables.
func OpenDB(ctx context.Context, cfg *config.Config, log *slog.Logger) (*clickhouse.DB, error) {
	c, err := clickhouseConfig(ctx, withReaderUser(cfg))
	if err != nil {
		return nil, err
	}
	db, err := clickhouse.Open(c, log)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	if err := migrate.Check(ctx, db); err != nil {
		return nil, errors.Join(asPrecondition(err), db.Close())
	}
	return db, nil
}

// OpenProducer returns a producer that sets the source of its messages. The caller closes it.
func OpenProducer(ctx context.Context, cfg *config.Config, log *slog.Logger, source string) (*kafka.Producer, error) {
	k, err := kafkaConfig(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	return kafka.NewProducer(k, source)
}

// OpenDeadLetters returns access to the dead letters. It needs only Kafka. The caller closes it.
func OpenDeadLetters(ctx context.Context, cfg *config.Config, log *slog.Logger) (*deadletter.Letters, error) {
	k, err := kafkaConfig(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	return deadletter.New(k)
}
