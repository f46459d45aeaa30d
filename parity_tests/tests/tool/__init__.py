"""The tool: judge, explanations, ports, reports and commands."""
