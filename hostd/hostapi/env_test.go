package hostapi

import (
	"strings"
	"testing"
)

func TestEnvironmentsThatAreTooLarge(t *testing.T) {
	most := strings.Repeat("v", MaxVariable-len("A=")-1)
	for _, c := range []struct {
		env   map[string]string
		limit int
		name  string
		over  int
	}{
		{nil, MaxEnv, "", 0},
		{map[string]string{"A": most}, MaxExecEnv, "", 0},
		{map[string]string{"A": most + "v", "B": ""}, MaxExecEnv, "A", MaxVariable},
		{map[string]string{"A": "", "B": most}, MaxBuildEnv, "B", MaxBuildEnv},
		{map[string]string{"A": most, "B": most, "C": most, "D": most, "E": most, "F": most, "G": most, "H": most}, MaxExecEnv, "", 0},
		{map[string]string{"A": most, "B": most, "C": most, "D": most, "E": most, "F": most, "G": most, "H": most, "I": ""}, MaxExecEnv, "A", MaxExecEnv},
	} {
		if name, over := EnvExcess(c.env, c.limit); name != c.name || over != c.over {
			t.Errorf("%d variables: %q, %d", len(c.env), name, over)
		}
	}
}
