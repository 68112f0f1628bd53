-- Question: Where and why does a harness depart from its own history?
-- One row a role, relation (extends, branches, restarts) and cause, made from the first difference that the
-- proxy recorded; null where a call simply goes on. `context_tokens` is what had to be sent anew. The example
-- is the first such call.
-- Then: what branches or restarts costs prefill and makes more paths; the cause says what to switch off in
-- the harness (a changing system prompt, dropped reasoning, rewritten tool calls).
-- Empty: the lake has no calls.
-- Key: role, relation, cause
with classified as (
    select
        *,
        case
            when retry_of is not null then 'retry of a reply that did not arrive'
            when contains(difference, 'the same messages as call') then 'asked the same again'
            when contains(difference, 'the messages end at') then 'history cut short'
            when contains(difference, 'its answer was dropped') then 'answer dropped'
            when contains(difference, ': tool calls ') then 'tool calls changed'
            when contains(difference, 'reasoning differs') then 'reasoning edited'
            when regexp_matches(difference, '^message \d+ \(system\): text differs')
                then 'system prompt edited'
            when regexp_matches(difference, '^message \d+ \(user\): text differs') then 'user message edited'
            when regexp_matches(difference, '^message \d+ \(tool\): text differs') then 'tool result edited'
            when regexp_matches(difference, '^message \d+ \(\w+\): text differs') then 'answer edited'
            when contains(difference, 'had one of role') then 'another role in its place'
            when contains(difference, 'in what is not its text') then 'fields beside the text changed'
            when contains(difference, 'the rendering before message')
                then 'template renders the past otherwise'
            when contains(difference, 'turns are rendered from their messages')
                then 'template refused sampled turns'
            when regexp_matches(difference, '^call_[\d_]+ came back with')
                then 'tool call rewritten, restored'
            when regexp_matches(difference, '^token \d+ differs from call') then 'tokens differ'
            when difference <> '' then 'other'
            when relation = 'restarts' then 'new conversation'
            when relation = 'branches' then 'not said'
        end as cause
    from calls
),

final as (
    select
        any_value(s.harness) as harness,
        c.role,
        c.relation,
        c.cause,
        count(*) as calls,
        count(*) / sum(count(*)) over () as share,
        count(distinct c.execution_id) as executions,
        sum(c.shared_len)::bigint as shared_tokens,
        sum(c.n_context)::bigint as context_tokens,
        arg_min(c.execution_id, (c.execution_id, c.call_id)) as example,
        arg_min(c.call_id, (c.execution_id, c.call_id)) as example_call,
        arg_min(c.difference, (c.execution_id, c.call_id)) as example_difference
    from classified as c
    cross join run_settings as s
    group by c.role, c.relation, c.cause
)

select * from final
