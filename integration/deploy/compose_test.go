// Package deploy tests the files in deploy: what they say, and, in "make e2e", the images and compose.yaml over a
// Docker Engine.
package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// root is the root of the repository.
const root = "../.."

// composeFile is the part of a compose file that the tests read.
type composeFile struct {
	Services map[string]struct {
		Image    string   `yaml:"image"`
		MemLimit string   `yaml:"mem_limit"`
		Ports    []string `yaml:"ports"`
	} `yaml:"services"`
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy/compose.yaml"))
	must(t, err)
	var c composeFile
	// A key may be in a service and in what it merges.
	must(t, yaml.UnmarshalWithOptions(text, &c, yaml.AllowDuplicateMapKey()))
	if len(c.Services) < 10 {
		t.Fatalf("compose.yaml has %d services", len(c.Services))
	}
	return c
}

// Images of others are pinned by digest, every service has a memory limit, and no port is reachable from elsewhere.
func TestCompose(t *testing.T) {
	ours := regexp.MustCompile(`^\$\{\w+:-millrace[a-z-]*:dev\}$`)
	pinned := regexp.MustCompile(`^\$\{\w+:-[a-z0-9/-]+:[\w.-]+@sha256:[0-9a-f]{64}\}$`)
	for name, s := range readCompose(t).Services {
		if !ours.MatchString(s.Image) && !pinned.MatchString(s.Image) {
			t.Errorf("service %s: image %s has no digest", name, s.Image)
		}
		if s.MemLimit == "" {
			t.Errorf("service %s has no mem_limit", name)
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("service %s publishes %s on every interface", name, p)
			}
		}
	}
}

// All base images are pinned by digest.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "deploy/Dockerfile"))
	must(t, err)
	if !regexp.MustCompile(`(?m)^ARG DEBIAN=debian:\S+@sha256:[0-9a-f]{64}$`).Match(text) {
		t.Error("the base of Debian has no digest")
	}
	for _, from := range regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(string(text), -1) {
		if from[1] != "scratch" && from[1] != "$DEBIAN" {
			t.Errorf("base image %s is not one of scratch and $DEBIAN", from[1])
		}
	}
}
