package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/cmd/millrace/demo"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

// Main measures the main job and returns the rows in table order. All roles, the broker and ClickHouse are processes on
// this machine.
func Main(ctx context.Context, cfg Config) ([]Row, error) {
	r := newRunner(cfg)
	files, err := r.files()
	if err != nil {
		return nil, err
	}
	names, err := filesBelow(files)
	if err != nil {
		return nil, fmt.Errorf("%w: list the files to store: %w", usage.Err, err)
	}
	return r.measure(ctx, r.mainFigures(files, len(names)))
}

// files returns the directory of the files that the main job stores.
func (r *runner) files() (string, error) {
	dir, err := demo.Folder(r.cfg.Files)
	if err != nil {
		return "", fmt.Errorf("%w: %w", usage.Err, err)
	}
	if r.cfg.Quick && r.cfg.Files == "" {
		dir = filepath.Join(dir, "archive")
	}
	return dir, nil
}

func (r *runner) mainFigures(files string, n int) []figure {
	w := r.amounts.window.Seconds()
	const peer = "rclone copy x3, check --download x2: no fsync, no records"
	return []figure{
		{fmt.Sprintf("main job: %s files stored, copied twice, all checked: fsync, all on record", count(n)), "items/s", peer,
			target{}, r.mainJob(files, n, func(u cost) float64 { return float64(n) / u.seconds })},
		{"main job: time for it", "s", peer, target{op: "<=", bound: 60},
			r.mainJob(files, n, func(u cost) float64 { return u.seconds })},
		{"main job: processor time for it, with start and end of roles, broker and ClickHouse", "s", peer, target{},
			r.mainJob(files, n, func(u cost) float64 { return u.cpu })},
		{fmt.Sprintf("deletes: of one destination, on record within %.0f s", w), "deletes/s", "",
			target{op: ">=", bound: 200}, r.rolesRate("delete", r.amounts.deleted)},
		{fmt.Sprintf("copies: of an import without digests, each with fresh records, on record within %.0f s", w), "copies/s",
			"", target{op: ">=", bound: 300}, r.rolesRate("import", r.amounts.imported)},
		{fmt.Sprintf("changes: until both copies have passed their checks, on record, p99 at %d/s", changeRate), "s", "",
			target{op: "<=", bound: 1}, r.verifyLatency},
		r.auditRow(),
	}
}

// mainJob returns a figure of the main job. The first of these figures runs both sides in turns.
func (r *runner) mainJob(files string, n int, of func(cost) float64) func(context.Context) (measurement, error) {
	return r.measureOnce("main", func(ctx context.Context) (d comparison, err error) {
		peer, err := r.peerProgram()
		if err != nil {
			return d, err
		}
		if peer == "" {
			d.absent = "make peers"
		}
		for range min(2, r.amounts.rounds) {
			res, u, err := r.roles(ctx, "--do", "store", "--files", files)
			if err != nil {
				return d, err
			}
			if res.Records != int64(n) {
				return d, fmt.Errorf("stored %d of %d files", res.Records, n)
			}
			d.ours = append(d.ours, cost{res.Seconds, u.cpu})
			if peer == "" {
				continue
			}
			if u, err = r.mainPeer(ctx, peer, files, n); err != nil {
				return d, err
			}
			d.peers = append(d.peers, u)
		}
		return d, nil
	}, of)
}

// roles runs a RolesSide in a temporary directory.
func (r *runner) roles(ctx context.Context, args ...string) (res sideResult, u cost, err error) {
	err = inTemp(func(dir string) error {
		var out []byte
		if u, out, err = runMeasured(ctx, nil, r.cfg.Self,
			append([]string{"rolesside", "--dir", dir}, args...)...); err != nil {
			return err
		}
		return json.Unmarshal(out, &res)
	})
	return res, u, err
}

// inTemp calls do with a temporary directory and removes the directory.
func inTemp(do func(dir string) error) (err error) {
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return fmt.Errorf("make a directory for the figure: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return do(dir)
}

// mainPeer runs the peer's main job: three copies of the files, two of them compared with the first byte by byte.
func (r *runner) mainPeer(ctx context.Context, program, files string, n int) (u cost, err error) {
	err = inTemp(func(dir string) error {
		one, two, three := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "3")
		for _, words := range [][]string{
			{"copy", files, one}, {"copy", one, two}, {"copy", one, three},
			{"check", "--download", one, two}, {"check", "--download", one, three},
		} {
			took, _, err := runMeasured(ctx, []string{"RCLONE_CONFIG=" + os.DevNull}, program,
				append(peerSettings(sideWork), words...)...)
			if err != nil {
				return err
			}
			u.seconds, u.cpu = u.seconds+took.seconds, u.cpu+took.cpu
		}
		for _, copied := range []string{one, two, three} {
			if all, err := filesBelow(copied); err != nil || len(all) != n {
				return errors.Join(err, fmt.Errorf("%s copied %d of %d files", rclone, len(all), n))
			}
		}
		return nil
	})
	return u, err
}

// rolesRate returns a figure of the items per second that the roles record.
func (r *runner) rolesRate(do string, items int) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		res, _, err := r.roles(ctx, "--do", do, "--items", fmt.Sprint(items), "--window", r.amounts.window.String())
		m.ours = []float64{res.rate()}
		return m, err
	}
}

// verifyLatency measures the time until the checks of the copies are recorded.
func (r *runner) verifyLatency(ctx context.Context) (m measurement, err error) {
	res, _, err := r.roles(ctx, "--do", "change", "--items", fmt.Sprint(r.amounts.changed))
	m.ours = []float64{res.Seconds}
	return m, err
}
