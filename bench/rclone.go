package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Credentials of the S3 server in memory, which does not verify them, and the environment variable that has them.
const (
	objectsKey      = "bench"
	objectsVariable = "MILLRACE_BENCH_KEY"
)

// besideRclone runs our side and the peer's in turns. peer gets the path of the peer's program, which make peers
// builds; without that only our side runs.
func (r *runner) besideRclone(
	rounds int, ours func(round int) (float64, error), peer func(program string) (float64, error),
) (measurement, error) {
	program := filepath.Join(r.cfg.Peers, "rclone")
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
		return inTurns(rounds, "make peers", ours, nil)
	}
	return inTurns(rounds, "", ours, func(int) (float64, error) { return peer(program) })
}

// rclone runs the peer with the fastest settings found for this work. The remotes SOURCE and TARGET are the same S3
// server, so that rclone does not use a server-side copy.
func rclone(
	ctx context.Context, program, url string, transfers int, args ...string,
) (seconds float64, out []byte, err error) {
	env := []string{"RCLONE_CONFIG=" + os.DevNull}
	for _, name := range []string{"SOURCE", "TARGET"} {
		for key, value := range map[string]string{
			"type": "s3", "provider": "Other", "endpoint": url, "region": "us-east-1",
			"access_key_id": objectsKey, "secret_access_key": objectsKey,
			"list_version": "2", "list_url_encode": "true", "force_path_style": "true",
			"no_check_bucket": "true", "no_head_object": "true", "no_head": "false",
			"use_unsigned_payload": "true", "disable_checksum": "true",
		} {
			env = append(env, "RCLONE_CONFIG_"+name+"_"+strings.ToUpper(key)+"="+value)
		}
	}
	return runTimed(ctx, env, program, append([]string{
		"--transfers", fmt.Sprint(transfers), "--checkers", fmt.Sprint(transfers), "--fast-list", "--buffer-size", "0",
		"--multi-thread-streams", "0", "--stats", "0",
	}, args...)...)
}

// filesBelow lists the regular files below dir, as paths relative to dir. dir may be a symbolic link.
func filesBelow(dir string) (files []string, err error) {
	err = filepath.WalkDir(dir+string(filepath.Separator), func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, name)
		return err
	})
	return files, err
}

// wantFiles returns an error unless there are n files below dir.
func wantFiles(dir string, n int) error {
	files, err := filesBelow(dir)
	if err == nil && len(files) != n {
		err = fmt.Errorf("rclone copied %d of %d files", len(files), n)
	}
	return err
}
