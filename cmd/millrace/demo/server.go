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

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/streams/storage/s3/s3proc"
)

// Kinds of stores 2 and 3. The first store always has driver file.
const (
	kindFile = "file"
	kindS3   = "s3"
)

// serverName is the only supported server: it keeps objects as files, which the demo can damage.
const serverName = "versitygw"

// A server is the S3 server of a demo, in its state directory:
//
//	s3/data/store-ID-SPACE/ITEM    the objects
//	s3/access-key, s3/secret-key   the credentials, mode 0600
//	s3/server.log                  the log
type server struct {
	*s3proc.Server
	dir string
}

// program returns the path of the S3 server: cfg.Server, or peers/versitygw in the directory of
// this program.
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
		return "", fmt.Errorf("%w: %s: the demo needs a %s, whose files it can damage", usage.Err, path, serverName)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", usage.Err, err)
	}
	switch info, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("%w: there is no S3 server at %s: build it with 'make servers', "+
			"or name one with --s3-server PATH", usage.Err, path)
	case err != nil:
		return "", fmt.Errorf("%w: find the S3 server: %w", usage.Err, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return "", fmt.Errorf("%w: %s is not a program", usage.Err, path)
	}
	return path, nil
}

// serve starts the S3 server if stores 2 and 3 need it, on the port of the previous run if that is
// free.
func (d *demo) serve(ctx context.Context, state *statedir.Dir) error {
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

// checkXattrs refuses a file system without extended attributes: the server keeps its metadata in
// them.
func (s *server) checkXattrs() error {
	err := unix.Setxattr(s.dir, "user.millrace", []byte("1"), 0)
	if errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("%w: the file system of %s has no extended attributes, which the S3 server needs: "+
			"name a directory of another one with --state", precondition.Err, s.dir)
	} else if err != nil {
		return fmt.Errorf("test extended attributes in %s: %w", s.dir, err)
	}
	return nil
}

// close stops the server.
func (s *server) close() error {
	if s == nil {
		return nil
	}
	if err := s.Close(); err != nil {
		return fmt.Errorf("stop the S3 server: %w", err)
	}
	return nil
}

// watch waits until ctx is done. It returns an error if the server ends before.
func (s *server) watch(ctx context.Context) error {
	if s == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.Exited():
		return fmt.Errorf("the S3 server ended (%v); its last output:\n%s", s.ProcessState(), s.LogTail())
	}
}

// keyFile returns the path of one of the credentials.
func (s *server) keyFile(which string) string { return filepath.Join(s.dir, which+"-key") }

// bucketPrefix returns the prefix of the names of a store's buckets.
func bucketPrefix(store string) string { return "store-" + store + "-" }

// path returns the path of an object's file. Changes to it bypass the server.
func (s *server) path(store, item string) string {
	return filepath.Join(s.dir, "data", bucketPrefix(store)+space, filepath.FromSlash(item))
}

// store returns the configuration of a store on the server.
func (s *server) store(id string) config.Store {
	return config.Store{ID: id, Driver: kindS3, Endpoint: s.URL, BucketPrefix: bucketPrefix(id), PathStyle: true,
		Credentials: config.Credentials{
			AccessKey: config.FileSecret(s.keyFile("access")), SecretKey: config.FileSecret(s.keyFile("secret")),
		}}
}

// readKey reads a credential; "" if there is none.
func readKey(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the S3 server's keys: %w", err)
	}
	return string(b), nil
}

// writeKey writes a credential to a file that only its owner can read.
func writeKey(path, text string) error {
	if err := statedir.WriteFile(path, []byte(text)); err != nil { // mode 0600
		return fmt.Errorf("write the S3 server's keys: %w", err)
	}
	return nil
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && l.Close() == nil
}
