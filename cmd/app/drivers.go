package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/s3"
)

// driver is the only switch over the drivers. It returns the function that opens a store. clock, if not nil, is called
// with how far the clock of the store's service is ahead; files are dated by the clock of the process.
func driver(
	account string, c config.Store, log *slog.Logger, clock func(ahead time.Duration),
) (open func(context.Context) (storage.Store, error), err error) {
	switch c.Driver {
	case "file":
		id, skipped := schemas.Key(account, c.ID), func(path, reason string) {
			log.Warn("skip path", "account", account, "store", c.ID, "path", path, "reason", reason)
		}
		return func(context.Context) (storage.Store, error) {
			if c.Layout == "plain" {
				return file.OpenPlain(file.PlainConfig{
					ID: id, Root: c.Root, Space: c.Space, Expect: c.Expect, ExpectSHA256: c.ExpectSHA256, Skipped: skipped,
				})
			}
			return file.Open(file.Config{ID: id, Root: c.Root, Skipped: skipped})
		}, nil
	case "s3":
		return func(ctx context.Context) (storage.Store, error) { return openS3(ctx, account, c, log, clock) }, nil
	default:
		return nil, fmt.Errorf("unknown driver %q", c.Driver)
	}
}

// secretTimeout bounds the time of a command that returns a secret.
const secretTimeout = 30 * time.Second

// openS3 makes a store of driver s3. It sends no request.
func openS3(
	ctx context.Context, account string, c config.Store, log *slog.Logger, clock func(ahead time.Duration),
) (*s3.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	credentials := s3.Credentials{FromEnvironment: c.Credentials.FromEnvironment}
	for _, secret := range []struct {
		into *string
		from config.Secret
		name string
	}{
		{&credentials.AccessKey, c.Credentials.AccessKey, "access_key"},
		{&credentials.SecretKey, c.Credentials.SecretKey, "secret_key"},
		{&credentials.SessionToken, c.Credentials.SessionToken, "session_token"},
	} {
		var err error
		if *secret.into, err = secret.from.Resolve(ctx); err != nil {
			return nil, fmt.Errorf("credentials.%s: %w", secret.name, err)
		}
	}
	cfg := s3.Config{
		ID: schemas.Key(account, c.ID), Endpoint: c.Endpoint, Region: c.Region, Bucket: c.Bucket, Prefix: c.Prefix,
		BucketPrefix: c.BucketPrefix, PathStyle: c.PathStyle, Credentials: credentials, Proxy: c.Proxy,
		Encryption: c.Encryption, KMSKey: c.KMSKey, StorageClass: c.StorageClass, RequesterPays: c.RequesterPays,
		Restore: c.Restore, Clock: clock,
		Skipped: func(key, reason string) {
			log.Warn("skip path", "account", account, "store", c.ID, "path", key, "reason", reason)
		},
	}
	if c.CA != "" {
		var err error
		if cfg.CA, err = os.ReadFile(c.CA); err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
	}
	return s3.New(cfg)
}
