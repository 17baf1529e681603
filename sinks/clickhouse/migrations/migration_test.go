package migrations

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestReadMigrations(t *testing.T) {
	t.Parallel()
	file := &fstest.MapFile{Data: []byte("SELECT 1")}
	for name, tc := range map[string]struct {
		files fstest.MapFS
		want  string
	}{
		"a gap":       {fstest.MapFS{"0001_a.sql": file, "0003_b.sql": file}, ""},
		"two of one":  {fstest.MapFS{"0001_a.sql": file, "0001_b.sql": file}, "0001_b.sql has the number of 0001_a"},
		"no number":   {fstest.MapFS{"a.sql": file}, "a.sql has no number"},
		"in a row":    {fstest.MapFS{"0001_a.sql": file, "0002_b.sql": file}, ""},
		"other files": {fstest.MapFS{"0001_a.sql": file, "migrations.go": file}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(tc.files)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}
