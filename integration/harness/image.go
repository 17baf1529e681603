package harness

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

//go:embed image
var imageFiles embed.FS

const imageName = "millrace/kafka"

// kafkaImage returns the name of the brokers' image. It builds the image if the daemon has none of the same inputs: the
// jars, and the Java and shared libraries of this machine.
func kafkaImage(ctx context.Context, docker *client.Client, of release) (string, error) {
	java, version, err := findJava(ctx)
	if err != nil {
		return "", err
	}
	made := sha256.New()
	fmt.Fprintln(made, version, of.sums)
	for _, name := range []string{"Dockerfile", "kafka.sh", "root.sh"} {
		content, err := imageFiles.ReadFile("image/" + name)
		if err != nil {
			return "", err
		}
		made.Write(content)
	}
	tag := of.version + "-" + hex.EncodeToString(made.Sum(nil))[:12]
	image := imageName + ":" + tag
	if _, err := docker.ImageInspect(ctx, image); err == nil {
		return image, nil
	}
	jars, err := kafkaJars(ctx, of)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "millrace-image-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := fillImage(ctx, dir, java, jars); err != nil {
		return "", unavailable("write the image's files: %w", err)
	}
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return "", unavailable("%w", err)
	}
	defer provider.Close()
	_, err = provider.BuildImage(ctx, &testcontainers.ContainerRequest{
		FromDockerfile: testcontainers.FromDockerfile{Context: dir, Repo: imageName, Tag: tag, KeepImage: true},
	})
	if err != nil {
		return "", unavailable("build the image: %w", err)
	}
	return image, nil
}

// fillImage writes the build context of the image to dir.
func fillImage(ctx context.Context, dir, java, jars string) error {
	if err := os.CopyFS(filepath.Join(dir, "jars"), os.DirFS(jars)); err != nil {
		return err
	}
	for _, name := range []string{"Dockerfile", "kafka.sh", "root.sh"} {
		content, err := imageFiles.ReadFile("image/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	binary, err := filepath.EvalSymlinks(java)
	if err != nil {
		return err
	}
	home := filepath.Dir(filepath.Dir(binary))
	if out, err := exec.CommandContext(ctx, "bash", filepath.Join(dir, "root.sh"), home,
		filepath.Join(dir, "root")).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
