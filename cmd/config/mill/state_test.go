package mill

import (
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

// These were written by the StateManager of Mill 5.2.
const (
	dupState = `{"morsels":[{"account":"acme","spaceId":"photos","marker":"2019/img \"7\"` + "\u0085" + `.tif",` +
		`"deletePerformed":true,"storePolicy":{"srcStoreId":"1","destStoreId":"2"}},` +
		`{"account":"acme","spaceId":"papers","marker":null,"deletePerformed":false,` +
		`"storePolicy":{"srcStoreId":"1","destStoreId":"3"}}],"currentRunStartDate":1730368800000,"nextRunStartDate":null}`
	bitState = `{"morsels":[{"account":"acme","spaceId":"photos","marker":"a","deletePerformed":false,` +
		`"storeId":"2","storageProviderType":"AMAZON_GLACIER"}],"currentRunStartDate":1730368800000,"nextRunStartDate":null}`
	idleState = `{"morsels":[],"currentRunStartDate":null,"nextRunStartDate":1733047200000}`
)

func openStates(files map[string]string) func(string) (io.ReadCloser, error) {
	return func(name string) (io.ReadCloser, error) {
		text, ok := files[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}
}

func printed(r Result) (lines []string) {
	for _, l := range r.Lines {
		lines = append(lines, fmt.Sprint(l.File, " ", l.Number, ": ", l.Text, " -> ", l.Became))
	}
	return lines
}

// The state files of the working directory are read, also if the schedules are given after it.
func TestStatesOfWorkdir(t *testing.T) {
	files := map[string]string{"/w/dup-producer-state.json": dupState, "/w/bit-producer-state.json": idleState}
	r, err := Convert("p", strings.NewReader("workdir=/w\nlooping.dup.frequency=3d\nlooping.bit.frequency=2m"),
		openStates(files))
	const dup, bit = "/w/dup-producer-state.json 0: ", "/w/bit-producer-state.json 0: "
	const covered = " -> nothing: the first round of the sweep duplication begins anew and covers it"
	want := []string{
		"p 1: workdir=/w -> not needed: copies are streamed; there is no /w/storagestats-producer-state.json, " +
			"as before the first run",
		"p 2: looping.dup.frequency=3d -> sweep.duplication: every 3d",
		"p 3: looping.bit.frequency=2m -> fixity.period: 60d",
		dup + `morsels[0]: space "acme/photos" from store "1" to "2", queued up to "2019/img \"7\"\u0085.tif"` + covered,
		dup + `morsels[1]: space "acme/papers" from store "1" to "3", nothing was queued` + covered,
		dup + "nextRunStartDate: none -> not this date, but sweep.duplication: every 3d",
		bit + "nextRunStartDate: 2024-12-01T10:00:00Z -> not this date, but fixity.period: 60d",
	}
	if got := printed(r); err != nil || r.Failed() || !slices.Equal(got, want) {
		t.Errorf("got %v\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A frequency of 0 schedules no run, whatever its start; what is unfinished is then for a round by hand.
func TestStateOfNoSchedule(t *testing.T) {
	for name, tt := range map[string]struct{ properties, file, state, want string }{
		"bit": {"looping.bit.frequency=0d", "bit-producer-state.json", bitState, "fixity"},
		"stats": {"looping.storagestats.frequency=0d\nlooping.storagestats.start-time=20:00",
			"storagestats-producer-state.json", bitState, "stats"},
	} {
		r, err := Convert("p", strings.NewReader("workdir=/w\n"+tt.properties),
			openStates(map[string]string{"/w/" + tt.file: tt.state}))
		got := strings.Join(printed(r), "\n")
		if err != nil || len(r.Settings) != 1 || r.Settings[0].Key != "sweep."+tt.want || r.Settings[0].Values[0] != "off" ||
			!strings.Contains(got, "nothing: to finish it, run millrace sweep start "+tt.want) ||
			!strings.HasSuffix(got, "not this date, but sweep."+tt.want+": off") {
			t.Errorf("%s: got %v, %v, %s", name, err, r.Settings, got)
		}
	}
}

// A state file that is given itself is known by its content or its name, and has no settings.
func TestState(t *testing.T) {
	const named = `morsels[0]: space "acme/photos" in store "2", queued up to "a"` +
		" -> nothing: the first round of the sweep "
	for name, tt := range map[string]struct{ file, text, want string }{
		"duplication, renamed": {"old.json", dupState, "the first round of the sweep duplication begins anew"},
		"bit":                  {"w/bit-producer-state.json", "\n" + bitState, named + "fixity"},
		"stats":                {"storagestats-producer-state.json", bitState, named + "stats"},
		"between runs": {"bit-producer-state.json", idleState, "nextRunStartDate: 2024-12-01T10:00:00Z -> not this date, " +
			"but the default of fixity.period: looping.bit.frequency is not given"},
	} {
		r, err := Convert(tt.file, strings.NewReader(tt.text), openStates(nil))
		if got := strings.Join(printed(r), "\n"); err != nil || r.Failed() || len(r.Settings) > 0 ||
			!strings.Contains(got, tt.want) {
			t.Errorf("%s: got %v, %s, want %s", name, err, got, tt.want)
		}
	}
}

// A state file that cannot be read is an error, or fails the line that names it.
func TestFaultyState(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"cut off":     {dupState[:80], "s.json: at byte 80: unexpected end of JSON input"},
		"more":        {bitState + "x", fmt.Sprintf("s.json: at byte %d: invalid character 'x'", len(bitState)+1)},
		"other types": {`{"morsels":5}`, "s.json: json: cannot unmarshal number"},
		"a policy":    {`{"spaceDuplicationStorePolicies":{}}`, "s.json: it is not that of a looping task producer"},
	} {
		_, err := Convert("s.json", strings.NewReader(tt.text), openStates(nil))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
		r, err := Convert("p", strings.NewReader("looping.bit.state-file-path=s.json"),
			openStates(map[string]string{"s.json": tt.text}))
		if err != nil || len(r.Lines) != 1 || !r.Failed() || !strings.Contains(r.Lines[0].Became, "; not converted: read") {
			t.Errorf("%s: got %v, %v", name, err, r.Lines)
		}
	}
	r, err := Convert("p", strings.NewReader("looping.dup.state-file-path=s.json"),
		openStates(map[string]string{"s.json": ""}))
	if err != nil || len(r.Lines) != 1 || r.Failed() {
		t.Errorf("an empty one: got %v, %v", err, r.Lines)
	}
}
