package embedded

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// The pinned library: the npm package, the integrity of its archive in npm's notation, and the SHA-256 and the size
// of the shared library in it.
const (
	libraryPackage   = "@chdb/lib-linux-x64-gnu"
	libraryVersion   = "26.7.3-stable.1"
	libraryIntegrity = "sha512-XP97mMqnc5tZpKQywR8N7cLTsHNiTmHr30pC5mzo3jWmukjKn2IBa60c2B/gWUNcuFjOMjWoorQICCqBVj5wpw=="
	librarySHA256    = "36ad4e999882821ef13cf2d0f52c93f48e6ee1b4498b35a201c23ce4b8d15bf5"
	librarySize      = 566330096
	libraryName      = "libchdb.so"
)

// remedy ends every error of Fetch.
const remedy = "put a clickhouse binary on PATH, or run `npm pack " + libraryPackage + "@" + libraryVersion +
	"` where the registry can be reached, unpack " + libraryName + " and set MILLRACE_LIBCHDB to its path"

// errWrongLibrary means that a library or archive differs from the pinned one.
var errWrongLibrary = errors.New("not the pinned library")

// Fetch returns the path of libchdb in the user's cache directory. If it is missing, Fetch downloads it with npm,
// checks it against the pinned hashes and moves it into place. Several processes may fetch at the same time.
// progress receives a message before the download; it may be nil.
func Fetch(ctx context.Context, progress io.Writer) (string, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("no pinned libchdb for %s/%s: put a clickhouse binary on PATH", runtime.GOOS, runtime.GOARCH)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w; %s", err, remedy)
	}
	f := fetcher{
		npm: "npm", spec: libraryPackage + "@" + libraryVersion, integrity: libraryIntegrity,
		sum: librarySHA256, size: librarySize, dir: filepath.Join(cache, "millrace", "libchdb", libraryVersion),
	}
	return f.fetch(ctx, progress)
}

type fetcher struct {
	npm, spec, integrity, sum string
	size                      int64
	dir                       string
}

func (f fetcher) fetch(ctx context.Context, progress io.Writer) (string, error) {
	path := filepath.Join(f.dir, libraryName)
	st, err := os.Stat(path)
	switch {
	case err == nil && st.Size() == f.size:
		return path, nil
	case err == nil:
		return "", fmt.Errorf("%s: %w: it has %d bytes, not %d; remove it to have it fetched again, or %s",
			path, errWrongLibrary, st.Size(), f.size, remedy)
	case !errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("look for %s: %w; %s", libraryName, err, remedy)
	}
	if progress != nil {
		fmt.Fprintf(progress, "fetching the ClickHouse engine once (%s, 170 MB; 570 MB unpacked): it is kept in %s\n",
			f.spec, path)
	}
	if err := f.download(ctx, path); err != nil {
		return "", fmt.Errorf("fetch %s: %w; %s", f.spec, err, remedy)
	}
	return path, nil
}

// download runs npm pack in a temporary directory beside path, checks the archive, and moves the library to path.
func (f fetcher) download(ctx context.Context, path string) error {
	npm, err := exec.LookPath(f.npm)
	if err != nil {
		return fmt.Errorf("npm, the package manager of Node.js, was not found: %w", err)
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	f.removeStale()
	tmp, err := os.MkdirTemp(f.dir, "fetch-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, npm, "pack", "--silent", "--pack-destination", tmp, f.spec)
	cmd.Dir = tmp
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("run npm pack (is the registry reachable?): %w: %s", err, tail(said.String(), 600))
	}
	archives, err := filepath.Glob(filepath.Join(tmp, "*.tgz"))
	if err != nil || len(archives) != 1 {
		return fmt.Errorf("npm pack left %d archives, not one: %s", len(archives), tail(said.String(), 600))
	}
	library := filepath.Join(tmp, libraryName)
	if err := f.unpack(ctx, archives[0], library); err != nil {
		return err
	}
	return os.Rename(library, path)
}

// unpack checks the integrity of the archive, extracts the library and checks that.
func (f fetcher) unpack(ctx context.Context, archive, library string) error {
	in, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer in.Close()
	whole := sha512.New()
	if _, err := io.Copy(whole, reader{ctx, in}); err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	if got := "sha512-" + base64.StdEncoding.EncodeToString(whole.Sum(nil)); got != f.integrity {
		return fmt.Errorf("%w: the archive's integrity is %s, not %s", errWrongLibrary, got, f.integrity)
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return err
	}
	unzipped, err := gzip.NewReader(reader{ctx, in})
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: no %s in the archive", errWrongLibrary, libraryName)
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if header.Name == "package/"+libraryName {
			return f.write(files, library)
		}
	}
}

func (f fetcher) write(r io.Reader, library string) error {
	out, err := os.OpenFile(library, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer out.Close()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), r)
	if err != nil {
		return fmt.Errorf("unpack the library: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != f.sum || n != f.size {
		return fmt.Errorf("%w: sha256 %s of %d bytes, not %s of %d", errWrongLibrary, got, n, f.sum, f.size)
	}
	if err := out.Sync(); err != nil {
		return fmt.Errorf("write the library: %w", err)
	}
	return out.Close()
}

// removeStale removes directories of killed processes that are older than an hour.
func (f fetcher) removeStale() {
	left, _ := filepath.Glob(filepath.Join(f.dir, "fetch-*"))
	for _, dir := range left {
		if st, err := os.Stat(dir); err == nil && time.Since(st.ModTime()) > time.Hour {
			os.RemoveAll(dir)
		}
	}
}

// A reader fails after its context is done.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-n):]
}
