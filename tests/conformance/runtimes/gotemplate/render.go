// Renders a template of k3s the way k3s does: the template may name its own as "base", and both get the same data.
package main

import (
	"encoding/json"
	"os"
	"text/template"
)

type found struct{ RuntimeType, BinaryName string }

type data struct {
	Program       string
	SystemdCgroup bool
	ExtraRuntimes map[string]found
}

func main() {
	var given data
	if err := json.Unmarshal([]byte(os.Args[3]), &given); err != nil {
		panic(err)
	}
	parsed := template.Must(template.New("compiled_template").Parse(read(os.Args[2])))
	template.Must(parsed.New("base").Parse(read(os.Args[1])))
	if err := parsed.Execute(os.Stdout, given); err != nil {
		panic(err)
	}
}

func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return string(text)
}
