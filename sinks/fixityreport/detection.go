package fixityreport

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// countReadPercent is the percentage of the copies whose bytes are read in a period; absent if those of all are.
const countReadPercent = "read_percent"

// A Detection is the probability that damage to some copies of a space is found. It is the probability that the checks
// of one period read the bytes of at least one of them, if their damage does not depend on the sample, if it lasts for
// the whole period, and if no copy is overdue. What shows without a reading, such as another size, is found anyway.
type Detection struct {
	Damaged     int64   `json:"damaged"` // the number of damaged copies
	Probability float64 `json:"probability"`
}

// Detections returns the probabilities for one, ten and a hundred damaged copies of a space with a number of copies, of
// which a percentage is read in a period. It returns nil if all are read.
func Detections(percent int, copies int64) (all []Detection) {
	if percent >= 100 {
		return nil
	}
	unread := 1 - float64(percent)/100
	for _, n := range [...]int64{1, 10, 100} {
		if n <= copies {
			found := 1 - math.Pow(unread, float64(n))
			all = append(all, Detection{n, math.Round(found*1e12) / 1e12})
		}
	}
	return all
}

// DetectionText returns probabilities as text: '5.0% of 1, 40.1% of 10'.
func DetectionText(all []Detection) string {
	words := make([]string, len(all))
	for i, d := range all {
		words[i] = fmt.Sprintf("%s of %d", ShareText(d.Probability), d.Damaged)
	}
	return strings.Join(words, ", ")
}

// ShareText returns a share in percent, rounded down, so that only all is 100%.
func ShareText(share float64) string {
	return strconv.FormatFloat(float64(int(share*1000))/10, 'f', 1, 64) + "%"
}

// Detections returns the probabilities for the space of the round at its end; nil if the bytes of all copies are read,
// or the report does not say it.
func (r Round) Detections() []Detection {
	percent, ok := r.Counts[countReadPercent]
	if !ok {
		return nil
	}
	return Detections(int(percent), r.Counts[countLive])
}
