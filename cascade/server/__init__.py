"""`cascade serve`: a cascade behind OpenAI's chat completions API, so that an application changes its address alone."""
