package harness

import (
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// copyJars is the Maven goal that downloads the dependencies of a POM.
const copyJars = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

//go:embed pom.xml
var pom []byte

//go:embed jars.sha256
var sums string

//go:embed oldest.sha256
var oldestSums string

// release is a version of Kafka and the checksums of its jars.
type release struct{ version, sums string }

// release returns the Kafka release of the brokers.
func (o Options) release() release {
	if o.Oldest {
		return release{"3.9.2", oldestSums}
	}
	return release{"4.3.1", sums}
}

// kafkaJars returns a directory with the brokers' jars, from the cache or downloaded by Maven. It verifies the
// checksums of all jars at each call.
func kafkaJars(ctx context.Context, of release) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", unavailable("%w", err)
	}
	dir := filepath.Join(cache, "millrace", "kafka-"+of.version)
	cached := checkJars(dir, of.sums)
	if cached == nil {
		return dir, nil
	}
	maven, err := exec.LookPath("mvn")
	if err != nil {
		return "", unavailable("no jars in the cache (%w), and no Maven to download them", cached)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	// Use a temporary directory: two tests may download at the same time, and either may be killed.
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := os.WriteFile(filepath.Join(tmp, "pom.xml"), pom, 0o600); err != nil {
		return "", err
	}
	fetched := filepath.Join(tmp, "jars")
	cmd := exec.CommandContext(ctx, maven, "-q", "-B", "-ntp", "--strict-checksums", copyJars,
		"-Dkafka.version="+of.version,
		"-DincludeScope=runtime", "-DoutputDirectory="+fetched)
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", unavailable("fetch jars with Maven: %w\n%s", err, out)
	}
	if err := checkJars(fetched, of.sums); err != nil {
		return "", fmt.Errorf("check the jars from Maven: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.Rename(fetched, dir); err != nil && checkJars(dir, of.sums) != nil {
		return "", err
	}
	return dir, nil
}

// checkJars compares a directory with sums, in the format of sha256sum. Missing and additional files are errors.
func checkJars(dir, sums string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	want, lines := map[string]string{}, bufio.NewScanner(strings.NewReader(sums))
	for lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) == 2 {
			want[f[1]] = f[0]
		}
	}
	var errs []error
	for _, e := range entries {
		sum, ok := want[e.Name()]
		delete(want, e.Name())
		if !ok {
			errs = append(errs, fmt.Errorf("%s has no sum", e.Name()))
			continue
		}
		if got, err := fileSum(filepath.Join(dir, e.Name())); err != nil || got != sum {
			errs = append(errs, fmt.Errorf("%s: sha256 %s, want %s (%w)", e.Name(), got, sum, err))
		}
	}
	for name := range want {
		errs = append(errs, fmt.Errorf("%s is missing", name))
	}
	return errors.Join(errs...)
}

func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
