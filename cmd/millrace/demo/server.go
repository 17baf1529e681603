package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/storage/s3/s3proc"
)

// Kinds of stores 2 and 3. The first is always one of files.
const (
	kindFile = "file"
	kindS3   = "s3"
)

// serverName is the one server that the demo can do harm to: it keeps objects as files.
const serverName = "versitygw"

// A server is the S3 server of one demo, in its state directory:
//
//	s3/data/store-ID-SPACE/ITEM    the objects
//	s3/access-key, s3/secret-key   what its clients say, mode 0600
//	s3/server.log                  what it says
type server struct {
	*s3proc.Server
	dir string
}

// program finds the S3 server: the one that is named, or the one beside millrace.
func (c Config) program() (string, error) {
	path := c.Server
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find the S3 server: %w", err)
		}
		path = filepath.Join(filepath.Dir(self), "peers", serverName)
	}
	if filepath.Base(path) != serverName {
		return "", fmt.Errorf("%w: %s: the demo wants a %s, whose files it can harm", usage.Err, path, serverName)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", usage.Err, err)
	}
	switch info, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("%w: there is no S3 server at %s: build it with 'make servers', or name one with --s3-server PATH", usage.Err, path)
	case err != nil:
		return "", fmt.Errorf("%w: look for the S3 server: %w", usage.Err, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return "", fmt.Errorf("%w: %s is no program", usage.Err, path)
	}
	return path, nil
}

// serve starts the S3 server where stores 2 and 3 are on one: on the port of the run before, where that is free.
func (d *demo) serve(ctx context.Context, state *app.State) error {
	if d.checkpoint.Kind != kindS3 {
		return nil
	}
	program, err := d.cfg.program()
	if err != nil {
		return err
	}
	step := d.display.Step("start the S3 server", 1)
	s := &server{dir: state.Path("s3")}
	cfg := s3proc.Config{Program: program, Dir: s.dir, Port: d.checkpoint.Port}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make the S3 server's directory: %w", err)
	}
	if cfg.Port != 0 && !isFree(cfg.Port) {
		cfg.Port = 0
	}
	if err := s.checkXattrs(); err != nil {
		return err
	}
	if cfg.Access, err = readKey(s.keyFile("access")); err != nil {
		return err
	}
	if cfg.Secret, err = readKey(s.keyFile("secret")); err != nil {
		return err
	}
	if s.Server, err = s3proc.Start(ctx, cfg); err != nil {
		step.End(false)
		return err
	}
	d.server = s
	step.Set(1)
	step.End(true)
	if err := errors.Join(writeKey(s.keyFile("access"), s.Access), writeKey(s.keyFile("secret"), s.Secret)); err != nil {
		return err
	}
	d.checkpoint.Port = s.Port
	return d.checkpoint.save()
}

// attributes refuses a file system that keeps no attributes of files: the server has its metadata in them.
func (s *server) checkXattrs() error {
	err := unix.Setxattr(s.dir, "user.millrace", []byte("1"), 0)
	if errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("%w: the file system of %s keeps no attributes of files, which the S3 server needs: name a directory of another with --state",
			app.ErrPrecondition, s.dir)
	} else if err != nil {
		return fmt.Errorf("try attributes of files in %s: %w", s.dir, err)
	}
	return nil
}

// close ends the server.
func (s *server) close() error {
	if s == nil {
		return nil
	}
	if err := s.Close(); err != nil {
		return fmt.Errorf("stop the S3 server: %w", err)
	}
	return nil
}

// watch returns when ctx is done, or with an error when the server ends by itself.
func (s *server) watch(ctx context.Context) error {
	if s == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.Exited():
		return fmt.Errorf("the S3 server ended by itself (%v) and said last:\n%s", s.State(), s.Said())
	}
}

// key is the file that has one of the credentials.
func (s *server) keyFile(which string) string { return filepath.Join(s.dir, which+"-key") }

// buckets goes before the names of spaces in the names of a store's buckets.
func bucketPrefix(store string) string { return "store-" + store + "-" }

// path is where an object's bytes lie. Whoever changes them there does so behind the server's back.
func (s *server) path(store, item string) string {
	return filepath.Join(s.dir, "data", bucketPrefix(store)+space, filepath.FromSlash(item))
}

// store is the configuration of a store on the server.
func (s *server) store(id string) config.Store {
	return config.Store{ID: id, Driver: kindS3, Endpoint: s.URL, BucketPrefix: bucketPrefix(id), PathStyle: true,
		Credentials: config.Credentials{AccessKey: config.FileSecret(s.keyFile("access")), SecretKey: config.FileSecret(s.keyFile("secret"))}}
}

// kept reads what keep wrote; nothing where it did not.
func readKey(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the S3 server's keys: %w", err)
	}
	return string(b), nil
}

// keep writes a file that only its owner reads.
func writeKey(path, text string) error {
	if err := app.WriteFile(path, []byte(text)); err != nil { // mode 0600
		return fmt.Errorf("keep the S3 server's keys: %w", err)
	}
	return nil
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && l.Close() == nil
}
