package app

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// An interval of 0 turns the trimmer or the tidier off.
func TestUpkeep(t *testing.T) {
	for name, tt := range map[string]struct {
		trim, tidy time.Duration
		want       []string
	}{
		"both":         {time.Hour, time.Hour, []string{"group positions", "trimmer", "tidier"}},
		"no trimmer":   {0, time.Hour, []string{"group positions", "tidier"}},
		"no tidier":    {time.Hour, 0, []string{"group positions", "trimmer"}},
		"none of both": {0, 0, []string{"group positions"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := trimming(t, kafkatest.New(t, kafkatest.Options{Partitions: 1}), time.Minute)
				a.cfg.Trim.Every, a.cfg.Tidy.Every = tt.trim, tt.tidy
				var got []string
				for _, p := range a.upkeep() {
					got = append(got, p.name)
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		})
	}
}
