package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3"
)

// A PolicySource is a folder of policies: a directory, a prefix of a bucket, or a prefix of a space.
type PolicySource struct {
	Location string // where it is, as it is recorded
	files    fs.FS
	close    func() error
}

// Close ends the connections.
func (s *PolicySource) Close() error { return s.close() }

// PolicyDirectory returns a directory as a source.
func PolicyDirectory(dir string) (*PolicySource, error) {
	location, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("policy folder: %w", err)
	}
	return &PolicySource{location, os.DirFS(dir), func() error { return nil }}, nil
}

// PolicyBucket returns s3://BUCKET/PREFIX as a source. The credentials and the region are those of the environment of
// AWS tools. endpoint is the URL of another service; empty for AWS.
func PolicyBucket(ctx context.Context, address, endpoint string) (*PolicySource, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "s3" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is not s3://BUCKET/PREFIX", address)
	}
	region := cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	cfg := s3.Config{
		ID: address, Region: region, ReadOnly: true, Credentials: s3.Credentials{FromEnvironment: true},
		Endpoint: endpoint, PathStyle: endpoint != "",
	}
	if endpoint == "" {
		cfg.Endpoint = "https://s3." + region + ".amazonaws.com"
	}
	store, err := s3.New(cfg)
	if err != nil {
		return nil, err
	}
	prefix := strings.Trim(u.Path, "/")
	location := strings.TrimSuffix("s3://"+u.Host+"/"+prefix, "/")
	if endpoint != "" {
		location += " at " + strings.TrimSuffix(endpoint, "/")
	}
	return &PolicySource{location, storeFiles{ctx, store, u.Host, prefix}, store.Close}, nil
}

// PolicyStore returns SPACE/PREFIX in a configured store as a source.
func PolicyStore(
	ctx context.Context, cfg *config.Config, log *slog.Logger, name StoreName, where string,
) (*PolicySource, error) {
	space, prefix, _ := strings.Cut(strings.Trim(where, "/"), "/")
	if space == "" {
		return nil, fmt.Errorf("%q is not SPACE/PREFIX", where)
	}
	stores, err := newStores(cfg, log)
	if err != nil {
		return nil, err
	}
	st, err := stores.configured(name)
	if err != nil {
		return nil, errors.Join(err, stores.close())
	}
	location := path.Join("store", name.Account, name.Store, space, prefix)
	return &PolicySource{location, storeFiles{ctx, st, space, prefix}, stores.close}, nil
}

// storeFiles are the items below a prefix of a space as files. Directories have no entries, since the files of a policy
// folder are known by their names.
type storeFiles struct {
	ctx    context.Context // of the command that reads the files
	store  storage.Store
	space  string
	prefix string
}

var (
	_ fs.StatFS     = storeFiles{}
	_ fs.ReadFileFS = storeFiles{}
	_ fs.ReadDirFS  = storeFiles{}
)

// item returns the id of the item with the content of a file.
func (f storeFiles) item(name string) string { return strings.TrimPrefix(f.prefix+"/"+name, "/") }

// Open implements fs.FS.
func (f storeFiles) Open(name string) (fs.File, error) {
	info, err := f.Stat(name)
	if err != nil {
		return nil, err
	}
	content, err := f.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return &storeFile{info, bytes.NewReader(content)}, nil
}

// Stat implements fs.StatFS.
func (f storeFiles) Stat(name string) (fs.FileInfo, error) {
	if name == "." {
		return fileInfo{name, storage.Object{}, fs.ModeDir}, nil
	}
	o, err := f.store.Stat(f.ctx, f.space, f.item(name))
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return fileInfo{name, o, 0}, nil
}

// ReadFile implements fs.ReadFileFS.
func (f storeFiles) ReadFile(name string) ([]byte, error) {
	r, _, err := f.store.Open(f.ctx, f.space, f.item(name), "")
	if err != nil {
		return nil, pathError("open", name, err)
	}
	b, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, pathError("read", name, err)
	}
	return b, nil
}

// ReadDir implements fs.ReadDirFS.
func (f storeFiles) ReadDir(string) ([]fs.DirEntry, error) { return nil, nil }

// pathError converts an error of a store. An absent space is not an absent file.
func pathError(op, name string, err error) error {
	if errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrNoSpace) {
		err = fs.ErrNotExist
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

type storeFile struct {
	info fs.FileInfo
	*bytes.Reader
}

func (f *storeFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *storeFile) Close() error               { return nil }

type fileInfo struct {
	name   string
	object storage.Object
	mode   fs.FileMode
}

func (i fileInfo) Name() string       { return path.Base(i.name) }
func (i fileInfo) Size() int64        { return i.object.Size }
func (i fileInfo) Mode() fs.FileMode  { return i.mode }
func (i fileInfo) ModTime() time.Time { return i.object.Modified }
func (i fileInfo) IsDir() bool        { return i.mode.IsDir() }
func (i fileInfo) Sys() any           { return nil }
