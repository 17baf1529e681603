package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage/s3"
)

// secretTimeout bounds the time of a command that returns a secret.
const secretTimeout = 30 * time.Second

// openS3 makes a store of driver s3. It sends no request.
func openS3(ctx context.Context, account string, c config.Store, log *slog.Logger) (*s3.Store, error) {
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
		Restore: c.Restore,
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
