package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/bench/s3bench"
)

// peerCopy copies all items with the peer, with the fastest settings found for this work (docs/benchmarks.md).
func (r *runner) peerCopy(
	ctx context.Context, program string, s *server, to string, transfers int,
) (u cost, err error) {
	if _, err := s.createStore(ctx, to); err != nil {
		return u, err
	}
	target := to + "-" + space
	defer func() { err = errors.Join(err, s.dropBucket(ctx, target)) }()
	u, _, err = runMeasured(ctx, s.rcloneEnv(), program, append(peerSettings(transfers),
		"--no-traverse", "--ignore-times", "--use-server-modtime", "copy", "SOURCE:"+fromBucket, "TARGET:"+target)...)
	if err != nil {
		return u, err
	}
	store, err := s.open(to)
	if err != nil {
		return u, err
	}
	n := 0
	for _, err := range store.List(ctx, space, "") {
		if err != nil {
			return u, err
		}
		n++
	}
	if n != s.items {
		return u, fmt.Errorf("%s copied %d of %d items", rclone, n, s.items)
	}
	return u, nil
}

// peerHash reads all items with the peer for one digest.
func (r *runner) peerHash(
	ctx context.Context, program string, s *server, alg string, transfers int,
) (u cost, err error) {
	u, out, err := runMeasured(ctx, s.rcloneEnv(), program,
		append(peerSettings(transfers), "hashsum", alg, "--download", "SOURCE:"+fromBucket)...)
	if n := bytes.Count(out, []byte("\n")); err == nil && n != s.items {
		err = fmt.Errorf("%s printed digests of %d of %d items", rclone, n, s.items)
	}
	return u, err
}

func peerSettings(transfers int) []string {
	return []string{
		"--transfers", fmt.Sprint(transfers), "--checkers", fmt.Sprint(transfers), "--fast-list", "--buffer-size", "0",
		"--multi-thread-streams", "0", "--stats", "0",
	}
}

// rcloneEnv returns the environment of rclone. It defines two remotes for the same server, so that rclone does not use
// a server-side copy.
func (s *server) rcloneEnv() []string {
	env := []string{"RCLONE_CONFIG=" + os.DevNull}
	for _, name := range []string{"SOURCE", "TARGET"} {
		for key, value := range map[string]string{
			"type": "s3", "provider": "Other", "endpoint": s.url, "region": "us-east-1",
			"access_key_id": s.access, "secret_access_key": s.secret,
			"list_version": "2", "list_url_encode": "true", "force_path_style": "true",
			"no_check_bucket": "true", "no_head_object": "true", "no_head": fmt.Sprint(!s.statAfterPut),
			"use_unsigned_payload": "true", "disable_checksum": "true",
		} {
			env = append(env, "RCLONE_CONFIG_"+name+"_"+strings.ToUpper(key)+"="+value)
		}
	}
	return env
}

// largeItems compares one pass for two digests with one pass per digest.
func (r *runner) largeItems(ctx context.Context) (m measurement, err error) {
	a := r.amounts
	s, err := r.serveMemory(ctx, s3bench.Load{Bucket: fromBucket, Objects: a.largeItems, Size: a.largeSize})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	peer, err := r.peerProgram()
	if err != nil {
		return m, err
	}
	if peer == "" {
		m.absent = "make peers"
	}
	mib := float64(a.largeItems) * float64(a.largeSize) / (1 << 20)
	for range a.fewRounds() {
		u, _, err := runMeasured(ctx, s.env(), r.cfg.Self, "storageside", "--endpoint", s.url,
			"--do", "hash", "--source", fromStore, "--space", space, "--workers", fmt.Sprint(largeWork))
		if err != nil {
			return m, err
		}
		m.ours = append(m.ours, mib/u.seconds)
		if peer == "" {
			continue
		}
		var both float64
		for _, alg := range []string{"md5", "sha256"} {
			u, err := r.peerHash(ctx, peer, s, alg, largeWork)
			if err != nil {
				return m, err
			}
			both += u.seconds
		}
		m.peers = append(m.peers, mib/both)
	}
	return m, nil
}

// hashdeep is the peer's program, a package in Debian and other distributions.
const hashdeep = "hashdeep"

// localItems returns a figure in which both sides digest all items of a file store with md5 and sha256. The bytes are
// in the page cache. amount is what the figure counts per pass.
func (r *runner) localItems(n int, size int64, workers int, amount float64) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		peer, err := exec.LookPath(hashdeep)
		if err != nil {
			m.absent = "make peers, or apt-get install " + hashdeep
		}
		return m, inTemp(func(dir string) error {
			store, err := fileStore(ctx, dir, fromStore)
			if err != nil {
				return err
			}
			defer store.Close()
			if err := fill(ctx, store, slices.Repeat([]int64{size}, n)); err != nil {
				return err
			}
			for range r.amounts.fewRounds() {
				u, _, err := runMeasured(ctx, nil, r.cfg.Self, "storageside", "--root", dir, "--do", "hash", "--source", fromStore,
					"--space", space, "--workers", fmt.Sprint(workers))
				if err != nil {
					return err
				}
				m.ours = append(m.ours, amount/u.seconds)
				if m.absent != "" {
					continue
				}
				u, out, err := runMeasured(ctx, nil, peer, "-c", "md5,sha256", "-r", filepath.Join(dir, fromStore, space))
				if err != nil {
					return err
				}
				if printed := bytes.Count(out, []byte("\n"+fmt.Sprint(size)+",")); printed != n {
					return fmt.Errorf("%s printed digests of %d of %d files", hashdeep, printed, n)
				}
				m.peers = append(m.peers, amount/u.seconds)
			}
			return nil
		})
	}
}
