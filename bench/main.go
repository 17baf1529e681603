package bench

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/cmd/millrace/demo"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

// changeRate is the number of changes per second.
const changeRate = 50

// main returns the figures of the main job. All roles, the broker and ClickHouse are processes on this machine.
func (r *runner) main() ([]figure, error) {
	dir, err := demo.Folder(r.cfg.Files)
	if err != nil {
		return nil, err
	}
	if r.cfg.Quick && r.cfg.Files == "" {
		dir = filepath.Join(dir, "archive")
	}
	files, err := filesBelow(dir)
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("none below %s", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: list the files to store: %w", usage.Err, err)
	}
	return []figure{
		{fmt.Sprintf("main job: %s files stored, copied twice, all checked: fsync, all on record", count(len(files))), "s",
			"rclone copy x3, check --download x2: no fsync, no records", atMost(60),
			func(ctx context.Context) (measurement, error) { return r.mainJob(ctx, dir, len(files)) }},
		{fmt.Sprintf("deletes: of one destination, on record within %.0f s", r.amounts.window.Seconds()), "deletes/s", "",
			atLeast(200), r.deletes},
		{fmt.Sprintf("changes: until the end of the copy, p99 at %d/s", changeRate), "s", "", atMost(1), r.copyDelay},
	}, nil
}

// mainJob runs both sides in turns. The peer makes three copies of the files and compares two with the first byte by
// byte.
func (r *runner) mainJob(ctx context.Context, files string, n int) (measurement, error) {
	return r.besideRclone(r.amounts.fewRounds(), func(int) (float64, error) {
		res, err := r.roles(ctx, &rolesSide{Do: "store", Files: files})
		if err == nil && res.Records != int64(n) {
			err = fmt.Errorf("stored %d of %d files", res.Records, n)
		}
		return res.Seconds, err
	}, func(program string) (all float64, err error) {
		return all, inTemp(func(dir string) error {
			one, two, three := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "3")
			for _, words := range [][]string{
				{"copy", files, one}, {"copy", one, two}, {"copy", one, three},
				{"check", "--download", one, two}, {"check", "--download", one, three},
			} {
				seconds, _, err := rclone(ctx, program, "", sideWork, words...)
				if err != nil {
					return err
				}
				all += seconds
			}
			for _, copied := range []string{one, two, three} {
				if err := wantFiles(copied, n); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// roles runs a job of all roles in a temporary directory.
func (r *runner) roles(ctx context.Context, s *rolesSide) (res sideResult, err error) {
	err = inTemp(func(dir string) error {
		s.Dir = dir
		res, _, err = r.runSide(ctx, "roles", s)
		return err
	})
	return res, err
}

// deletes measures the rate at which deletes at one destination are recorded.
func (r *runner) deletes(ctx context.Context) (m measurement, err error) {
	res, err := r.roles(ctx, &rolesSide{Do: "delete", Items: r.amounts.deleted, Window: r.amounts.window})
	m.ours = []float64{res.rate()}
	return m, err
}

// copyDelay measures the time from a Change to the end of its copy.
func (r *runner) copyDelay(ctx context.Context) (m measurement, err error) {
	res, err := r.roles(ctx, &rolesSide{Do: "change", Items: r.amounts.changed})
	m.ours = []float64{res.Seconds}
	return m, err
}
