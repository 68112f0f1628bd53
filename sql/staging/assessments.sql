-- One row an assessed execution: the assessment that counts, the latest version, then the latest offset.
-- Where the group was made ready for this set, only scores below the offset that was read then count, so
-- that a replay sees exactly what the live run saw, whatever came later.
-- `missing` is an assessment without a value, never a zero.
-- Key: group_id, execution_id
with ready as (
    select e.group_id, arg_min(e.scores_end, e.log_offset) as scores_end
    from event_groups as e
    join params as p on p.set_name = e.set_name
    where e.type = 'group.ready'
    group by e.group_id
),

first_seen as (
    select
        group_id,
        execution_id,
        event_id,
        arg_min(
            {assessment: assessment, value: value, version: version, evaluator: evaluator}, log_offset
        ) as score,
        min(log_offset) as log_offset
    from event_scores
    group by group_id, execution_id, event_id
),

counted as (
    select s.group_id, s.execution_id, arg_max(s.score, (s.score.version, s.log_offset)) as score
    from first_seen as s
    left join ready as r on r.group_id = s.group_id
    where r.scores_end is null or s.log_offset < r.scores_end
    group by s.group_id, s.execution_id
),

final as (
    select group_id, execution_id, score.assessment, score.value, score.version, score.evaluator
    from counted
)

select * from final
